"""The exact ratio of whole completions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.ratios.base import ImportanceRatio


def sequence_sum_log_ratio(token_log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Sum of the token log-ratios of each row, given back to each of its tokens; 0 off the mask.  [B, T] -> [B, T]."""
    total = masked_sum(token_log_ratio, mask, dim=1)[:, None]
    return torch.where(mask, total, torch.zeros_like(total))


@dataclass(frozen=True)
class SequenceSumRatio(ImportanceRatio):
    """log W[i] = sum over t of (logp - old_logp): unbiased, but its variance grows with the length.

    Source: VESPO, arXiv:2602.10693; RLOO as in TRL.
    """

    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        return sequence_sum_log_ratio(token_log_ratio, mask)
