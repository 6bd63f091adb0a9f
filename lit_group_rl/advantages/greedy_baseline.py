"""The advantage of ReMax."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_mean, group_size
from lit_group_rl.types import BASELINE, Advantages, Problem, Recipe, RolloutBatch


def greedy_baseline(scores: Tensor, group_ids: Tensor, is_baseline: Tensor) -> Tensor:
    """Compare each score with that of the baseline row of its group: A[i] = s[i] - s[greedy row of i's group].

    A group without a scored baseline row has nothing to compare with and gets 0, as do the baseline rows themselves.
    Several baseline rows count with their mean.  [B] -> [B] float64.

    Source: ReMax, arXiv:2310.10505, eq. 7.
    """
    usable = is_baseline & ~scores.isnan()
    scores = scores.nan_to_num().double()
    known = group_size(group_ids, usable) > 0
    return torch.where(known & ~is_baseline, scores - group_mean(scores, group_ids, usable), 0.0)


@dataclass(frozen=True)
class GreedyBaseline(AdvantageEstimator):
    """A completion's score minus that of the greedy completion of its prompt, which the sampler must add."""

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        if not recipe.has_rows(BASELINE):
            yield Problem(
                "model.sampler",
                "GreedyBaseline compares with a greedy completion, and this sampler draws none: advantages would be 0",
                "Set it to GreedyRowSampler",
            )

    def estimate(self, batch: RolloutBatch) -> Advantages:
        return Advantages(per_token(greedy_baseline(batch.totals, batch.group_ids, batch.row_role == BASELINE), batch))
