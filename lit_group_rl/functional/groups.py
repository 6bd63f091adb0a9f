"""Statistics per prompt group, for groups of any and unequal size.

Everything is computed in float64 and centred before squaring: rewards with a large common offset keep their
differences, and equal rewards give exactly zero. Rows that do not count (abstained, fully masked) are left out
of every statistic by ``valid`` and receive 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

TIE_TOLERANCE = 1e-9
"""A group whose spread is below this share of its largest magnitude is rounding, not preference."""


def group_index(group_ids: Tensor) -> tuple[Tensor, int]:
    """Number the groups 0..K-1.  ``group_ids`` [B] any integers -> (index [B], K)."""
    unique, index = torch.unique(group_ids, return_inverse=True)
    return index, len(unique)


def group_sum(values: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Sum over the valid members of each row's group, given back to every row.  [B] -> [B] float64."""
    index, k = group_index(group_ids)
    values = values.double()
    if valid is not None:
        values = torch.where(valid, values, 0.0)
    return values.new_zeros(k).index_add_(0, index, values)[index]


def group_size(group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Number of valid members of each row's group.  [B] -> [B] float64."""
    return group_sum(torch.ones(len(group_ids), dtype=torch.float64, device=group_ids.device), group_ids, valid)


def group_mean(values: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean over the valid members of each row's group; 0 for a group without any.  [B] -> [B] float64."""
    return group_sum(values, group_ids, valid) / group_size(group_ids, valid).clamp(min=1)


def group_extreme(values: Tensor, group_ids: Tensor, valid: Tensor | None = None, *, largest: bool) -> Tensor:
    """Largest (or smallest) valid value of each row's group; -inf (inf) without any.  [B] -> [B] float64."""
    index, k = group_index(group_ids)
    empty = float("-inf") if largest else float("inf")
    values = values.double()
    if valid is not None:
        values = torch.where(valid, values, empty)
    start = torch.full((k,), empty, dtype=torch.float64, device=values.device)
    return start.scatter_reduce(0, index, values, "amax" if largest else "amin")[index]


def group_is_tied(values: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """True where the row's group prefers nothing: max - min <= TIE_TOLERANCE * max|value|.  [B] -> [B] bool.

    A group with fewer than two valid members is tied.
    """
    high = group_extreme(values, group_ids, valid, largest=True)
    low = group_extreme(values, group_ids, valid, largest=False)
    return ~(high - low > TIE_TOLERANCE * torch.maximum(high.abs(), low.abs()))


def group_center(values: Tensor, group_ids: Tensor, valid: Tensor | None = None) -> Tensor:
    """value - mean(group); exactly 0 in a tied group and for rows that are not valid.  [B] -> [B] float64."""
    centered = values.double() - group_mean(values, group_ids, valid)
    off = group_is_tied(values, group_ids, valid)
    if valid is not None:
        off = off | ~valid
    return torch.where(off, 0.0, centered)


def group_std(values: Tensor, group_ids: Tensor, valid: Tensor | None = None, *, ddof: int = 1) -> Tensor:
    """Deviation of each row's group: sqrt(sum((v - mean)^2) / (n - ddof)); 0 where n <= ddof.  [B] -> [B] float64."""
    squares = group_sum(group_center(values, group_ids, valid) ** 2, group_ids, valid)
    return (squares / (group_size(group_ids, valid) - ddof).clamp(min=1)).sqrt()
