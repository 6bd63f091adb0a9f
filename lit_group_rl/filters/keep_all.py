"""No filter."""

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class KeepAll(GroupFilter):
    """Trains on every group, also on those whose members are all equal (their advantage is zero)."""

    def keep(self, batch: RolloutBatch) -> Tensor:
        return torch.ones(len(batch), dtype=torch.bool, device=batch.mask.device)
