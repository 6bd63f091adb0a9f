"""Means over the tokens that count.  One mask polarity in the whole kit: True = this token counts."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Sum of the values where the mask is True; what lies under False (even NaN) has no part in it."""
    kept = torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Mean of the values where the mask is True; 0, not NaN, where nothing counts."""
    count = mask.sum() if dim is None else mask.sum(dim)
    return masked_sum(values, mask, dim) / count.clamp(min=1)


def masked_std(values: Tensor, mask: Tensor, *, ddof: int = 1) -> Tensor:
    """Deviation of all values under the mask, centred first; 0 where n <= ddof."""
    centered = values - masked_mean(values, mask)
    return (masked_sum(centered**2, mask) / (mask.sum() - ddof).clamp(min=1)).sqrt()
