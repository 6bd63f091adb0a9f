"""Choose tokens by a statistic of the whole minibatch, and find the choice again in its micro-batches."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_group_rl.functional.collectives import all_rows, all_sum
from lit_group_rl.functional.masked import masked_sum


def quantile(values: Tensor, mask: Tensor, q: float) -> Tensor:
    """The q-quantile (linear interpolation) of the values under the mask in all processes; +inf if there are none.

    [B, T] -> [] of the values' type.
    """
    ordered = all_rows(values[mask]).sort().values
    if not len(ordered):
        return values.new_tensor(float("inf"))
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def largest(values: Tensor, mask: Tensor, count: int) -> Tensor:
    """True at the ``count`` largest values under the mask, counted over all processes.

    What equals the last one is taken too.  [B, T] -> [B, T] bool.
    """
    everyone = all_rows(values[mask])
    if count < 1 or not len(everyone):
        return torch.zeros_like(mask)
    threshold = everyone.topk(min(count, len(everyone))).values[-1]
    return mask & (values >= threshold)


def covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean A) * (logp - mean logp) per token, means over the tokens under the mask in all processes.

    [B, T] -> [B, T], 0 off the mask.  Source: Clip-Cov and KL-Cov, arXiv:2505.22617, eq. 10.
    """
    count = all_sum(mask.sum()).clamp(min=1)
    a = advantages - all_sum(masked_sum(advantages, mask)) / count
    p = logp - all_sum(masked_sum(logp, mask)) / count
    return torch.where(mask, a * p, torch.zeros_like(a))


def same_rows(chosen: Tensor, chosen_ids: Tensor, row_ids: Tensor, width: int) -> Tensor:
    """Of a choice [n, T] made over rows ``chosen_ids`` [n], the rows ``row_ids`` [b] and the first ``width`` tokens.

    Recomputing the choice on a micro-batch could flip a token at the threshold by rounding.
    """
    index = (row_ids[:, None] == chosen_ids[None]).long().argmax(1)
    return chosen[index, :width]
