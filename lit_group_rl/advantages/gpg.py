"""The advantage of GPG."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.collectives import all_sum
from lit_group_rl.functional.groups import group_center, group_is_tied
from lit_group_rl.types import Advantages, RolloutBatch


def gradient_scale(scores: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """alpha = B / (B - M): all valid rows over those of groups that are not tied, in all processes; 1 if none are.

    Makes up for the rows whose advantage is zero.  [B] -> [] float64.

    Source: GPG, arXiv:2504.02546, eq. 7 (accurate gradient estimation).
    """
    valid = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid
    useful = valid & ~group_is_tied(scores.nan_to_num(), group_ids, valid)
    rows, left = all_sum(torch.stack([valid.sum(), useful.sum()]).double())
    return torch.where(left > 0, rows / left.clamp(min=1), 1.0)


@dataclass(frozen=True)
class GPG(AdvantageEstimator):
    """alpha * (s - mean of the group): no deviation, but rows without signal do not thin out the others."""

    rescale: bool = True
    """Multiply by alpha = B / (B - M), M rows in tied groups; false gives alpha = 1."""

    needs_group = True

    def estimate(self, batch: RolloutBatch) -> Advantages:
        values = group_center(batch.totals.nan_to_num(), batch.group_ids, batch.counted)
        if self.rescale:
            values = values * gradient_scale(batch.totals, batch.group_ids, batch.counted)
        return Advantages(per_token(values, batch))
