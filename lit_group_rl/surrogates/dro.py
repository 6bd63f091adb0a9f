"""A squared log-ratio in place of a clip: DRO."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.schedules.base import require
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class DRO(Surrogate):
    """-(A logp - beta / 2 * log_ratio^2): plain policy gradient, held near the sampling policy by a square.

    Source: direct reward optimisation, arXiv:2405.19107, as used per token by verl and Tinker.
    """

    beta: float = 0.1
    """Weight of the square."""

    uses_bounds = False
    trust_region = True

    def __post_init__(self) -> None:
        require(self.beta >= 0, self, "beta", "must not be negative")

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        return -(ctx.advantages * ctx.logp - self.beta / 2 * ctx.log_ratio**2)
