"""A quadratic penalty in place of a clip: DRPO."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.schedules.base import require
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


def quadratic_loss(ratio: Tensor, old_logp: Tensor, advantages: Tensor, delta: float) -> Tensor:
    """-(r A - |A| / (2 delta) * q * (r - 1)^2), q = exp(old_logp).  [B, T] -> [B, T].

    The weight of a token's gradient is r * (1 - sign(A (r - 1)) |p - q| / delta): smooth, 0 where the probability has
    moved by delta in the advantage's direction, and pulling back beyond.
    """
    return -(ratio * advantages - advantages.abs() / (2 * delta) * old_logp.exp() * (ratio - 1) ** 2)


@dataclass(frozen=True)
class Quadratic(Surrogate):
    """The ratio objective with a penalty that grows with the squared move of the token's probability.

    Source: DRPO, arXiv:2606.09821.
    """

    delta: float
    """Move of the probability at which the gradient is 0.  No default: the value reported for the paper, 12.5, exceeds
    the largest possible move, 1, so it is scaled otherwise there; DPPO's threshold of the same quantity is 0.15."""

    needs = frozenset({"old_logp"})
    uses_bounds = False
    trust_region = True
    zero_without_advantage = True

    def __post_init__(self) -> None:
        require(self.delta > 0, self, "delta", "must be above 0")

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        assert ctx.batch.old_logp is not None
        return quadratic_loss(ctx.ratio, ctx.batch.old_logp.to(ctx.logp.dtype), ctx.advantages, self.delta)
