"""The value of the sequence ratio with a gradient local to the token: GSPO-token."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.ratios.sequence import sequence_log_ratio


@dataclass(frozen=True)
class SequenceTokenRatio(ImportanceRatio):
    """log s[i, t] = sg[log s[i]] + logp - sg[logp]: as the sequence ratio, but tokens may differ in advantage.

    Source: GSPO, arXiv:2507.18071, eq. 14 (GSPO-token).
    """

    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        return sequence_log_ratio(token_log_ratio, mask).detach() + token_log_ratio - token_log_ratio.detach()
