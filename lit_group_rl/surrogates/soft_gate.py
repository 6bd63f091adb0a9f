"""A smooth gate instead of a clip: SAPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.schedules.base import require
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


def soft_gate(ratio: Tensor, tau: Tensor | float) -> Tensor:
    """f(r) = 4 / tau * sigmoid(tau * (r - 1)): slope 1 at r = 1, fading to 0 on both sides.  [B, T] -> [B, T]."""
    return 4 / tau * torch.sigmoid(tau * (ratio - 1))


@dataclass(frozen=True)
class SoftGate(Surrogate):
    """-f(r) A with f(r) = 4 / tau * sigmoid(tau * (r - 1)).

    The weight of a token's gradient is 4 p (1 - p) r with p the sigmoid: 1 on-policy.

    Source: SAPO, arXiv:2511.20347.
    """

    tau_positive: float = 1.0
    """Sharpness of the gate where the advantage is above 0."""
    tau_negative: float = 1.05
    """Sharpness elsewhere; a little higher, since negative gradients spread over the whole vocabulary."""

    uses_bounds = False
    trust_region = True
    zero_without_advantage = True

    def __post_init__(self) -> None:
        require(self.tau_positive > 0, self, "tau_positive", "must be above 0")
        require(self.tau_negative > 0, self, "tau_negative", "must be above 0")

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        number = ctx.logp.new_tensor
        tau = torch.where(ctx.advantages > 0, number(self.tau_positive), number(self.tau_negative))
        return -soft_gate(ctx.ratio, tau) * ctx.advantages
