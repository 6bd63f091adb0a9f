"""The pass@k advantage that credits the best completion only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_extreme, group_is_tied, group_std, group_sum
from lit_group_rl.schedules.base import require_number
from lit_group_rl.types import Advantages, RolloutBatch


def top_two_gap(
    scores: Tensor, group_ids: Tensor, valid: Tensor | None = None, *, divide_by_std: bool = True, eps: float = 1e-6
) -> Tensor:
    """The best of a group gets its lead over the second best, all others 0.

        A[best] = (max - second) / (std + eps)

    Two equal best rows, a tied group, a single valid row: 0.  [B] -> [B] float64.

    Source: arXiv:2503.19595, eq. 5.
    """
    valid = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid
    scores = scores.nan_to_num().double()
    best = valid & (scores == group_extreme(scores, group_ids, valid, largest=True))
    alone = best & (group_sum(best.double(), group_ids) == 1) & ~group_is_tied(scores, group_ids, valid)
    second = group_extreme(scores, group_ids, valid & ~best, largest=True)
    gap = torch.where(alone, scores - torch.where(alone, second, 0.0), 0.0)
    return gap / (group_std(scores, group_ids, valid) + eps) if divide_by_std else gap


@dataclass(frozen=True)
class PassAtKTopTwo(AdvantageEstimator):
    """Only the best completion of a prompt is credited, by how far it leads."""

    divide_by_std: bool = True
    """Divide by the deviation of the group."""
    eps: float = 1e-6
    """Added to the deviation."""

    needs_group = True

    def __post_init__(self) -> None:
        require_number(self, "eps", low=0.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        values = top_two_gap(
            batch.totals, batch.group_ids, batch.counted, divide_by_std=self.divide_by_std, eps=self.eps
        )
        return Advantages(per_token(values, batch))
