"""Plain policy gradient."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class Reinforce(Surrogate):
    """-A * logp.  With scores of 1 on reference answers: the negative log-likelihood of supervised training."""

    uses_bounds = False
    zero_without_advantage = True

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        return -ctx.advantages * ctx.logp
