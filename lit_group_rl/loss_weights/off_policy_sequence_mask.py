"""Drop wrong completions that the policy has already moved away from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import require
from lit_group_rl.types import LossContext


def off_policy_keep(log_ratio: Tensor, advantages: Tensor, mask: Tensor, delta: float) -> Tensor:
    """False where A < 0 and the row's mean of (behaviour_logp - logp) exceeds ``delta``.

    ``log_ratio`` = logp - behaviour_logp.  [B, T] -> [B, T] bool.
    """
    stale = -masked_mean(log_ratio.detach(), mask, dim=1)[:, None] > delta
    return ~(stale & (advantages < 0))


@dataclass(frozen=True)
class OffPolicySequenceMask(LossWeight):
    """0 for tokens with a negative advantage in rows that have become much less likely since they were drawn, else 1.

    Source: DeepSeek-V3.2, arXiv:2512.02556, eq. 9.
    """

    delta: float = 0.1
    """Largest mean fall of the log-prob per token, in nats.  The paper gives no number."""

    def __post_init__(self) -> None:
        require(self.delta >= 0, self, "delta", "must not be negative")

    def weight(self, ctx: LossContext) -> Tensor:
        log_ratio = ctx.logp.detach() - ctx.batch.behaviour_logp.to(ctx.logp.dtype)
        keep = off_policy_keep(log_ratio, ctx.advantages, ctx.mask, self.delta)
        return keep.to(ctx.logp.dtype)
