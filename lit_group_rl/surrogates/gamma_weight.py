"""A weight of gamma-density shape on the sequence ratio: VESPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.schedules.base import require
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext

MAX_EXPONENT = 20.0


def gamma_weight(log_ratio: Tensor, k: Tensor | float, rate: Tensor | float) -> Tensor:
    """phi = W^k * exp(rate * (1 - W)) with W = exp(log_ratio): 1 at W = 1, largest at W = k / rate, 0 at both ends.

    Without gradient; the exponent of W is clamped to +-20.  [B, T] -> [B, T].
    """
    log_ratio = log_ratio.detach().clamp(-MAX_EXPONENT, MAX_EXPONENT)
    return (rate + k * log_ratio - rate * log_ratio.exp()).exp()


@dataclass(frozen=True)
class GammaWeight(Surrogate):
    """-phi(W) A logp, W the ratio of the whole completion (use the sequence-sum ratio).

    Source: VESPO, arXiv:2602.10693.
    """

    k_positive: float = 2.0
    """k where the advantage is not negative."""
    lambda_positive: float = 3.0
    """lambda where the advantage is not negative."""
    k_negative: float = 3.0
    """k where it is negative."""
    lambda_negative: float = 2.0
    """lambda where it is negative."""
    from_behaviour: bool = False
    """Measure W from the sampler's log-probs instead of the recomputed ones: corrects their mismatch as well."""

    uses_bounds = False
    trust_region = True
    zero_without_advantage = True

    def __post_init__(self) -> None:
        for option in ("k_positive", "lambda_positive", "k_negative", "lambda_negative"):
            require(getattr(self, option) > 0, self, option, "must be above 0")

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        number = ctx.logp.new_tensor
        positive = ctx.advantages >= 0
        k = torch.where(positive, number(self.k_positive), number(self.k_negative))
        rate = torch.where(positive, number(self.lambda_positive), number(self.lambda_negative))
        log_ratio = ctx.log_ratio
        if self.from_behaviour and ctx.batch.old_logp is not None:
            mismatch = masked_sum(ctx.batch.old_logp - ctx.batch.behaviour_logp, ctx.mask, dim=1)[:, None]
            log_ratio = log_ratio + mismatch.to(log_ratio.dtype)
        return -gamma_weight(log_ratio, k, rate) * ctx.advantages * ctx.logp
