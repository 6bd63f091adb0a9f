"""The advantage of MaxRL."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_center, group_mean
from lit_group_rl.types import Advantages, RolloutBatch


def mean_scaled(scores: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Center each group and divide by its mean: A[i] = (s[i] - mean) / mean, 0 where the mean is not above 0.

    For scores of 0 and 1 the gradient is that of log pass rate, cut after the group size's order; hard prompts weigh
    more.  Meant for scores that are never negative.  [B] -> [B] float64.

    Source: MaxRL, arXiv:2602.02710.
    """
    mean = group_mean(scores.nan_to_num(), group_ids, valid)
    centered = group_center(scores.nan_to_num(), group_ids, valid)
    return torch.where(mean > 0, centered / torch.where(mean > 0, mean, 1.0), 0.0)


@dataclass(frozen=True)
class MeanScaled(AdvantageEstimator):
    """A completion's score relative to the mean of its prompt's completions."""

    needs_group = True

    def estimate(self, batch: RolloutBatch) -> Advantages:
        return Advantages(per_token(mean_scaled(batch.totals, batch.group_ids, batch.counted), batch))
