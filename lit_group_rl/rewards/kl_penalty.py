"""Divergence from the reference policy as part of the reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_group_rl.functional.kl import ESTIMATORS
from lit_group_rl.rewards.base import RewardShaper
from lit_group_rl.schedules.base import Clock, Number, require_number
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class KLPenalty(RewardShaper):
    """-coef * estimator(old_logp - ref_logp) on every trained token, as in PPO from human feedback.

        k1: d          k2: d^2 / 2          k3: exp(-d) + d - 1          abs: |d|

    [B, T] float64, exactly 0 off the mask.  Source: Ziegler et al., arXiv:1909.08593, eq. 2 (k1).
    """

    coef: Number = 0.05
    """beta of the penalty."""
    estimator: Literal["k1", "k2", "k3", "abs"] = "k1"
    """Which estimate of the divergence; k1 is the unbiased one."""

    needs = frozenset({"ref_logp", "old_logp"})

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)

    def shape(self, batch: RolloutBatch, clock: Clock) -> Tensor:
        assert batch.old_logp is not None
        assert batch.ref_logp is not None
        value = ESTIMATORS[self.estimator](batch.old_logp.double() - batch.ref_logp.double())
        return torch.where(batch.mask, -clock.at(self.coef) * value, 0.0)
