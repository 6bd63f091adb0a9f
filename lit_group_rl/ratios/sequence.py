"""One ratio per completion, length-normalised: GSPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.ratios.base import ImportanceRatio


def sequence_log_ratio(token_log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Mean of the token log-ratios of each row, given back to each of its tokens; 0 off the mask.  [B, T] -> [B, T]."""
    mean = masked_mean(token_log_ratio, mask, dim=1)[:, None]
    return torch.where(mask, mean, torch.zeros_like(mean))


@dataclass(frozen=True)
class SequenceRatio(ImportanceRatio):
    """log s[i] = mean over t of (logp - old_logp): the geometric mean of the token ratios.

    Source: GSPO, arXiv:2507.18071, eq. 7.
    """

    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        return sequence_log_ratio(token_log_ratio, mask)
