"""One number per group from a column of scores: what tells a good group from a bad one."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_group_rl.functional.collectives import all_rows
from lit_group_rl.functional.groups import group_index, group_mean, group_size


def group_quality(column: Tensor, group_ids: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of a column over the valid members of each group, abstentions (NaN) left out.

    -> (quality [B] float64, known [B] bool); quality is 0 where nothing is known.
    """
    scored = valid & ~column.isnan()
    return group_mean(column.nan_to_num(), group_ids, scored), group_size(group_ids, scored) > 0


def standardised_between_groups(
    quality: Tensor, known: Tensor, group_ids: Tensor, *, ddof: int = 0, eps: float = 1e-6
) -> Tensor:
    """z = (q - mean) / (std + eps) over the known groups of all processes, each group once.

    0 for the others, and for all if the groups are equal.

    [B], equal within each group -> [B] float64.
    """
    index, k = group_index(group_ids)
    first = torch.zeros(k, dtype=torch.long, device=index.device)
    first[index.flip(0)] = torch.arange(len(index) - 1, -1, -1, device=index.device)
    everyone = all_rows(quality.double()[first][known[first]])
    if not len(everyone):
        return torch.zeros_like(quality, dtype=torch.float64)
    # taking off a value that occurs keeps equal groups at exactly 0
    shift = everyone[0]
    mean = (everyone - shift).mean()
    spread = everyone - shift - mean
    std = ((spread**2).sum() / max(len(everyone) - ddof, 1)).sqrt()
    return torch.where(known & (std > 0), (quality.double() - shift - mean) / (std + eps), 0.0)
