"""A clip of the token log-ratios before they are averaged: GMPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.schedules.base import require_number
from lit_group_rl.types import Bounds, LossContext


def one_sided_clip(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """min(d, high) where A > 0, max(d, -low) where A < 0, d where A = 0: pessimistic, like PPO's.  [B, T] -> [B, T]."""
    up = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio)
    return torch.where(advantages < 0, up.clamp(min=-low), up)


@dataclass(frozen=True)
class LogSpaceClip(ClipPolicy):
    """Clips each token's log-ratio before a sequence ratio averages them, so that one outlier cannot clip a whole row.

    GSPO clips after the mean.  Use with the sequence ratio and the unclipped surrogate.

    Source: GMPO, arXiv:2507.20673, eq. 4.
    """

    low: float = 0.4
    """How far the log-ratio may fall for a negative advantage."""
    high: float = 0.4
    """How far it may rise for a positive one."""

    def __post_init__(self) -> None:
        require_number(self, "low", low=0.0)
        require_number(self, "high", low=0.0)

    def pre(self, token_log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        return one_sided_clip(token_log_ratio, advantages, self.low, self.high)

    def bounds(self, ctx: LossContext) -> Bounds:
        return Bounds()
