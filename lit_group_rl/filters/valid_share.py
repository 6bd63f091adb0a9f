"""Enough groups with a signal, not only such groups: GPG."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.functional.collectives import all_sum
from lit_group_rl.functional.groups import group_is_tied
from lit_group_rl.schedules.base import require
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class ValidShare(GroupFilter):
    """Keeps all groups of a round if at least ``share`` of its rows stand in groups whose scores differ.

    Below that, the groups without a signal are replaced by new prompts.  The share is over all processes.

    Source: GPG, arXiv:2504.02546, eq. 8 (threshold beta_th).
    """

    share: float = 0.8
    """beta_th: smallest share of rows with a signal; the paper finds 0.8 best."""
    max_rounds: int = 3
    """Sampling rounds at most, the first included."""

    needs_group = True

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, self, "share", "must lie in [0, 1]")
        require(self.max_rounds >= 1, self, "max_rounds", "must be at least 1")

    def keep(self, batch: RolloutBatch) -> Tensor:
        assert batch.scores is not None
        mixed = ~group_is_tied(batch.scores.nan_to_num(), batch.group_ids, batch.counted)
        counted = batch.counted
        useful, rows = all_sum(torch.stack([(mixed & counted).sum(), counted.sum()]).double()).tolist()
        return torch.ones_like(mixed) if useful >= self.share * rows and rows else mixed
