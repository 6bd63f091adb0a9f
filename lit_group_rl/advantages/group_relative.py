"""The advantage of GRPO and, without the division, of Dr. GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.collectives import all_rows
from lit_group_rl.functional.groups import group_center, group_is_tied, group_std
from lit_group_rl.functional.masked import masked_std
from lit_group_rl.schedules.base import require, require_number
from lit_group_rl.types import Advantages, RolloutBatch


def group_relative(
    scores: Tensor,
    group_ids: Tensor,
    valid: Tensor | None = None,
    *,
    divide_by: str = "group_std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """Center each group's scores and, if asked, divide by a deviation.

        A[i] = (s[i] - mean(group of i)) / (std + eps)

    ``divide_by`` is 'group_std' (GRPO), 'batch_std' (deviation of all scores of the step, over processes),
    'centered_batch_std' (of the centred scores), or 'none' (Dr. GRPO).  A tied group prefers nothing and gets exact
    zeros, not rounding noise divided by eps.  [B] -> [B] float64.

    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1, which leaves ddof open; Dr. GRPO, arXiv:2503.20783; batch
    deviation: Lite PPO, arXiv:2508.08221.
    """
    valid = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid
    centered = group_center(scores.nan_to_num(), group_ids, valid)
    if divide_by == "none":
        return centered
    if divide_by == "group_std":
        tied = group_is_tied(scores.nan_to_num(), group_ids, valid)
        return torch.where(tied, 0.0, centered / (group_std(scores.nan_to_num(), group_ids, valid, ddof=ddof) + eps))
    of = scores.nan_to_num().double() if divide_by == "batch_std" else centered
    return centered / (masked_std(all_rows(of), all_rows(valid), ddof=ddof) + eps)


@dataclass(frozen=True)
class GroupRelative(AdvantageEstimator):
    """Gives every token of a completion that completion's group-relative score."""

    divide_by: Literal["group_std", "batch_std", "centered_batch_std", "none"] = "group_std"
    """Divide by the group's deviation, as GRPO does; 'none' gives Dr. GRPO."""
    ddof: int = 1
    """Divide the squares by n - ddof; the paper leaves it open."""
    eps: float = 1e-6
    """Added to the deviation."""

    needs_group = True

    def __post_init__(self) -> None:
        require(self.ddof in (0, 1), self, "ddof", "must be 0 or 1")
        require_number(self, "eps", low=0.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        values = group_relative(
            batch.totals, batch.group_ids, batch.counted, divide_by=self.divide_by, ddof=self.ddof, eps=self.eps
        )
        return Advantages(per_token(values, batch))
