"""Correct for a sampler whose probabilities are not quite the trainer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_group_rl.functional.masked import masked_mean, masked_sum
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import require
from lit_group_rl.types import LossContext

MAX_EXPONENT = 20.0


def rollout_weight(
    log_ratio: Tensor,
    mask: Tensor,
    *,
    level: str = "token",
    mode: str = "truncate",
    low: float = 0.0,
    cap: float = 2.0,
    keep_token_weights: bool = False,
) -> Tensor:
    """Importance weight w of the trainer's old policy against the sampler, bounded.

        level:  token: exp(d)    sequence: exp(sum d)    geometric: exp(mean d)        d = old_logp - behaviour_logp
        mode:   truncate: min(w, cap)       mask: w where low <= w <= cap, else 0
        keep_token_weights: the level decides what is kept (or that nothing is), the weight itself is exp(d)

    [B, T] -> [B, T], 0 off the mask; the exponent is clamped to +-20.
    """
    log_ratio = log_ratio.detach()
    if level == "token":
        at_level = log_ratio
    elif level == "sequence":
        at_level = masked_sum(log_ratio, mask, dim=1)[:, None].expand_as(log_ratio)
    else:
        at_level = masked_mean(log_ratio, mask, dim=1)[:, None].expand_as(log_ratio)
    decides = at_level.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp()
    weight = log_ratio.clamp(-MAX_EXPONENT, MAX_EXPONENT).exp() if keep_token_weights else decides
    if mode == "truncate":
        weight = weight.clamp(max=cap)
    else:
        weight = torch.where((decides >= low) & (decides <= cap), weight, torch.zeros_like(weight))
    return torch.where(mask, weight, torch.zeros_like(weight))


@dataclass(frozen=True)
class RolloutIS(LossWeight):
    """Multiplies the policy loss by how much likelier the trainer finds the completion than the sampler did.

        truncated (TIS):  mode truncate, cap 2       masked (MIS):  mode mask       IcePop: token, mask, 0.5 to 5
        geometric rejection:  level geometric, mode mask, low 0.999, cap 1.002, keep_token_weights

    The clip policy acts on the move since the rollout only; this acts on the mismatch at the rollout.

    Source: decoupled objective, arXiv:2110.00641; IcePop, arXiv:2510.18855.
    """

    level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio per token, of the whole completion (product), or its geometric mean."""
    mode: Literal["truncate", "mask"] = "truncate"
    """Cut large weights down to ``cap``, or drop what lies outside [low, cap]."""
    low: float = 0.0
    """Smallest weight kept by mode mask."""
    cap: float = 2.0
    """Largest weight."""
    keep_token_weights: bool = False
    """Let the level only decide what is dropped and weigh by the token ratio."""

    needs = frozenset({"old_logp"})

    def __post_init__(self) -> None:
        require(self.cap > 0, self, "cap", "must be above 0")
        require(0 <= self.low < self.cap, self, "low", "must lie in [0, cap)")
        require(self.low == 0 or self.mode == "mask", self, "low", "has an effect with mode: mask only")

    def weight(self, ctx: LossContext) -> Tensor:
        assert ctx.batch.old_logp is not None
        weight = rollout_weight(
            (ctx.batch.old_logp - ctx.batch.behaviour_logp).to(ctx.logp.dtype),
            ctx.mask,
            level=self.level,
            mode=self.mode,
            low=self.low,
            cap=self.cap,
            keep_token_weights=self.keep_token_weights,
        )
        ctx.metrics.masked("mismatch/weight_mean", weight, ctx.mask)
        ctx.metrics.masked("mismatch/dropped_frac", (weight == 0).double(), ctx.mask)
        return weight
