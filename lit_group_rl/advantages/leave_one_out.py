"""The advantage of RLOO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_center, group_size, group_sum
from lit_group_rl.schedules.base import require_number
from lit_group_rl.types import Advantages, RolloutBatch

RESIDUE = 1e-12
"""The others' squares below this share of the group's are what rounding leaves of equal scores."""


def leave_one_out(
    scores: Tensor,
    group_ids: Tensor,
    valid: Tensor | None = None,
    *,
    divide_by_std: bool = False,
    eps: float = 1e-6,
) -> Tensor:
    """Compare each score with the mean of the other members of its group.

        A[i] = s[i] - mean(s[j], j != i)  =  n / (n - 1) * (s[i] - mean)

    ``divide_by_std`` divides by the sample deviation of the others plus ``eps``; where the others are all equal the
    row is left unscaled, since a lone success would otherwise weigh a million.  Alone in its group, tied or not
    valid: exactly 0.  [B] -> [B] float64.

    Source: RLOO, arXiv:2402.14740, sec. 3.3; arXiv:1907.11180.
    """
    centered = group_center(scores.nan_to_num(), group_ids, valid)
    n = group_size(group_ids, valid)
    out = torch.where(n > 1, centered * n / (n - 1).clamp(min=1), 0.0)
    if not divide_by_std:
        return out
    squares = group_sum(centered**2, group_ids, valid)
    others = squares - centered**2 * n / (n - 1).clamp(min=1)
    std = (others / (n - 2).clamp(min=1)).clamp(min=0).sqrt()
    return torch.where((n > 2) & (others > RESIDUE * squares), out / (std + eps), out)


@dataclass(frozen=True)
class LeaveOneOut(AdvantageEstimator):
    """A completion's score minus the mean of the other completions of its prompt."""

    divide_by_std: bool = False
    """Divide by the deviation of the others, as NeMo-RL does; the paper does not."""
    eps: float = 1e-6
    """Added to that deviation."""

    needs_group = True

    def __post_init__(self) -> None:
        require_number(self, "eps", low=0.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        values = leave_one_out(
            batch.totals, batch.group_ids, batch.counted, divide_by_std=self.divide_by_std, eps=self.eps
        )
        return Advantages(per_token(values, batch))
