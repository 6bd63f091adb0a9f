"""The advantage of OPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_center, group_is_tied, group_sum
from lit_group_rl.types import Advantages, RolloutBatch


def length_weighted(scores: Tensor, lengths: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Compare each score with the length-weighted mean of its group, the baseline of least variance.

        A[i] = s[i] - sum(l * s) / sum(l)   over the group of i

    Tied groups and rows that are not valid get exactly 0.  [B], [B] -> [B] float64.

    Source: OPO, arXiv:2505.23585, eq. 8 (a gradient's norm is taken to grow with the length).
    """
    valid = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid
    scores = scores.nan_to_num()
    centered = group_center(scores, group_ids, valid)
    weight = lengths.double()
    shift = group_sum(weight * centered, group_ids, valid) / group_sum(weight, group_ids, valid).clamp(min=1)
    return torch.where(valid & ~group_is_tied(scores, group_ids, valid), centered - shift, 0.0)


@dataclass(frozen=True)
class LengthWeighted(AdvantageEstimator):
    """A completion's score minus the mean of its prompt's completions, weighted by their trained tokens."""

    needs_group = True

    def estimate(self, batch: RolloutBatch) -> Advantages:
        values = length_weighted(batch.totals, batch.mask.sum(1), batch.group_ids, batch.counted)
        return Advantages(per_token(values, batch))
