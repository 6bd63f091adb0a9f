"""Sums over the rest of a completion, and generalised advantage estimation."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_group_rl.functional.collectives import all_max, all_sum
from lit_group_rl.functional.masked import masked_sum


def discounted_return(rewards: Tensor, mask: Tensor, gamma: float | Tensor = 1.0) -> Tensor:
    """R[t] = r[t] + gamma * R[next token under the mask]; 0 off the mask.

    Tokens that do not count (tool output, padding) are stepped over: they neither add nor discount.
    ``rewards`` and ``mask`` [B, T], ``gamma`` a number or [B] -> [B, T] of the rewards' type.
    """
    running = torch.zeros_like(rewards[:, 0])
    out = torch.zeros_like(rewards)
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = torch.where(mask[:, t], rewards[:, t] + gamma * running, running)
        out[:, t] = torch.where(mask[:, t], running, 0.0)
    return out


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float | Tensor) -> Tensor:
    """Generalised advantage estimation over the tokens under the mask; 0 elsewhere.

        delta[t] = r[t] + gamma * V[next] - V[t]        A[t] = delta[t] + gamma * lam * A[next]

    ``next`` is the next token under the mask; after the last one V and A are 0 (a completion is an episode, also when
    it was cut off).  What the critic says off the mask is never read.  ``rewards``, ``values``, ``mask`` [B, T],
    ``lam`` a number or [B] -> [B, T] of the values' type, without gradient.

    Source: GAE, arXiv:1506.02438, eq. 16.
    """
    rewards, values = rewards.detach(), values.detach()
    after = torch.zeros_like(values[:, 0])
    running = torch.zeros_like(after)
    out = torch.zeros_like(values)
    for t in range(values.shape[1] - 1, -1, -1):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * after - values[:, t]
        running = torch.where(here, delta + gamma * lam * running, running)
        after = torch.where(here, values[:, t], after)
        out[:, t] = torch.where(here, running, 0.0)
    return out


def length_adaptive_lambda(lengths: Tensor, alpha: float) -> Tensor:
    """lam = 1 - 1 / (alpha * length), clamped to [0, 1]: below 1/alpha tokens it would be negative.  [B] -> [B].

    Source: VAPO, arXiv:2504.05118, sec. 4.2.
    """
    return (1 - 1 / (alpha * lengths.double().clamp(min=1))).clamp(0.0, 1.0)


def last_token(mask: Tensor) -> Tensor:
    """True at the last token of each row that counts; nowhere in a row without any.  [B, T] -> [B, T] bool."""
    position = mask.long().cumsum(1)
    return mask & (position == position[:, -1:])


def whiten(values: Tensor, mask: Tensor, *, ddof: int = 1, eps: float = 1e-8) -> Tensor:
    """(v - mean) / sqrt(var + eps) over all values under the mask in all processes; 0 elsewhere.

    The variance divides by n - ddof.  Equal values give exactly 0.  Any shape -> the same shape, float64.
    """
    values = values.detach().double()
    # taking off a value that occurs leaves exact zeros where all are equal; their mean would leave rounding
    top = all_max(torch.where(mask, values, float("-inf")).amax()) if values.numel() else values.sum()
    values = torch.where(mask, values - top, 0.0)
    count = all_sum(mask.sum().double()).clamp(min=1)
    centered = values - all_sum(masked_sum(values, mask)) / count
    variance = all_sum(masked_sum(centered**2, mask)) / (count - ddof).clamp(min=1)
    return torch.where(mask, centered / (variance + eps).sqrt(), 0.0)
