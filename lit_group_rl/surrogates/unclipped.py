"""The ratio objective without a clip."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class Unclipped(Surrogate):
    """-r A, the gradient through the ratio.  For a clip that acts before the ratio (GMPO), or none (KL-Cov).

    Source: GMPO, arXiv:2507.20673; conservative policy iteration as in PPO, arXiv:1707.06347, eq. 6.
    """

    uses_bounds = False
    zero_without_advantage = True

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        return -ctx.ratio * ctx.advantages
