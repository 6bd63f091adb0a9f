"""The two advantages of REINFORCE++."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_center
from lit_group_rl.functional.returns import discounted_return, last_token, whiten
from lit_group_rl.schedules.base import require, require_number
from lit_group_rl.types import Advantages, RolloutBatch


def rewards_per_token(batch: RolloutBatch) -> Tensor:
    """The score at the last trained token plus the token rewards, 0 for rows that do not count.  -> [B, T] float64."""
    assert batch.scores is not None
    rewards = torch.where(last_token(batch.mask), batch.scores.double()[:, None], 0.0)
    if batch.token_rewards is not None:
        rewards = rewards + torch.where(batch.mask, batch.token_rewards.double(), 0.0)
    return torch.where(batch.mask & batch.counted[:, None], rewards, 0.0)


@dataclass(frozen=True)
class ReinforcePP(AdvantageEstimator):
    """The return from each token on, whitened over all trained tokens of the step.

        G[t] = r[t] + gamma * G[t + 1]        A = (G - mean) / sqrt(var + eps)

    Needs no group.  The KL penalty of the paper is a shaper.

    Source: REINFORCE++, arXiv:2501.03262, sec. 3.
    """

    gamma: float = 1.0
    """Discount per token."""
    ddof: int = 1
    """Divide the squares by n - ddof (verl 1, NeMo-RL 0)."""
    eps: float = 1e-8
    """Added to the variance."""

    def __post_init__(self) -> None:
        require_number(self, "gamma", low=0.0, high=1.0)
        require(self.ddof in (0, 1), self, "ddof", "must be 0 or 1")
        require_number(self, "eps", low=0.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        mask = batch.mask & batch.counted[:, None]
        returns = discounted_return(rewards_per_token(batch), mask, self.gamma)
        return Advantages(whiten(returns, mask, ddof=self.ddof, eps=self.eps))


@dataclass(frozen=True)
class ReinforcePPBaseline(AdvantageEstimator):
    """The score minus the mean of the group, whitened over all trained tokens of the step.

    Source: REINFORCE++, arXiv:2501.03262, the variant with a baseline.
    """

    ddof: int = 1
    """Divide the squares by n - ddof."""
    eps: float = 1e-8
    """Added to the variance."""

    needs_group = True

    def __post_init__(self) -> None:
        require(self.ddof in (0, 1), self, "ddof", "must be 0 or 1")
        require_number(self, "eps", low=0.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        centered = per_token(group_center(batch.totals.nan_to_num(), batch.group_ids, batch.counted), batch)
        return Advantages(whiten(centered, batch.mask & batch.counted[:, None], ddof=self.ddof, eps=self.eps))
