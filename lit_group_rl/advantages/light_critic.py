"""The score minus a baseline that blends a critic with the group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.functional.collectives import all_sum
from lit_group_rl.functional.ema import ema
from lit_group_rl.functional.groups import group_center, group_size, group_sum
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.functional.returns import whiten
from lit_group_rl.schedules.base import require_number
from lit_group_rl.types import Advantages, RolloutBatch


def shrinkage(scores: Tensor, group_ids: Tensor, valid: Tensor, critic_error: float | None) -> tuple[Tensor, Tensor]:
    """Weight of the critic and the mean of the other members' scores, per row:

        w[i] = v[i] / (v[i] + critic_error),   v[i] = var(scores of the others) / (number of the others)

    the weights that minimise the error of w V + (1 - w) mean when the two are off independently.  Only others enter,
    so the baseline stays independent of the row's own draw.  Two members leave one other, whose variance is unknown:
    the critic alone, as in a group of one.  An error that is not known yet (None) gives the critic no weight where
    there is any other member.  [B] -> [B], [B] float64.
    """
    others = (group_size(group_ids, valid) - 1).clamp(min=0)
    mean = (group_sum(scores, group_ids, valid) - scores.double()) / others.clamp(min=1)
    mean = torch.where(others > 0, mean, 0.0)
    if critic_error is None:
        return torch.where(others > 0, 0.0, 1.0), mean
    centered = group_center(scores, group_ids, valid)
    squares = group_sum(centered**2, group_ids, valid) - centered**2 * (others + 1) / others.clamp(min=1)
    variance = squares.clamp(min=0) / (others - 1).clamp(min=1) / others.clamp(min=1)
    weight = torch.where(variance > 0, variance / (variance + critic_error).clamp(min=1e-300), 0.0)
    return torch.where(others > 1, weight, 1.0), mean


@dataclass
class LightCriticBaseline(AdvantageEstimator):
    """R - b with b = (1 - mix) * mean(group) + mix * V[t]; no TD error, and every token's target is R.

    ``mix`` 0 is Dr. GRPO.  There is no division by the group's deviation: in a tied group R - V is a signal, and the
    quotient would explode.  With ``shrinkage`` the weight of the critic follows from its measured error instead.

    Source: an interview note, which calls it VAPO; no publication of that description was found.  In the same spirit:
    V0.5, arXiv:2603.10848.
    """

    mix: float = 0.7
    """a: weight of the critic in the baseline, in [0, 1]."""
    shrinkage: bool = False
    """Weigh critic and the other members by their errors, per row, in place of ``mix``."""
    error_decay: float = 0.9
    """Of the moving average of the critic's squared error, per RL step."""
    whiten: bool = False
    """Whiten the advantages over all trained tokens of the step."""
    _error: float | None = field(default=None, init=False, repr=False, compare=False)

    needs = frozenset({"values"})

    def __post_init__(self) -> None:
        require_number(self, "mix", low=0.0, high=1.0)
        require_number(self, "error_decay", low=0.0, high=1.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        assert batch.values is not None
        valid = batch.counted
        mask = batch.mask & valid[:, None]
        scores = batch.totals.double().nan_to_num()
        values = torch.where(mask, batch.values.detach().double(), 0.0)
        if self.shrinkage:
            weight, others = shrinkage(scores, batch.group_ids, valid, self._error)
            baseline = weight[:, None] * values + ((1 - weight) * others)[:, None]
            advantages = scores[:, None] - baseline
            self._measure(values - scores[:, None], mask)
        else:
            centered = group_center(scores, batch.group_ids, valid)
            advantages = (1 - self.mix) * centered[:, None] + self.mix * (scores[:, None] - values)
        advantages = torch.where(mask, advantages, 0.0)
        # a row that does not count must not move the critic
        returns = torch.where(valid[:, None], scores[:, None], batch.values.detach().double())
        return Advantages(
            whiten(advantages, mask) if self.whiten else advantages, torch.where(batch.mask, returns, 0.0)
        )

    def _measure(self, error: Tensor, mask: Tensor) -> None:
        """After use: a step's own error would let its scores into its baseline."""
        total, count = all_sum(torch.stack([masked_sum(error**2, mask), mask.sum().double()])).tolist()
        if count:
            self._error = total / count if self._error is None else ema(self._error, total / count, self.error_decay)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._error is None else {"error": self._error}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._error = state["error"]
