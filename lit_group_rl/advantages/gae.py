"""Advantages from a critic, with the decoupled and length-adaptive forms of VC-PPO and VAPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.advantages.reinforce_pp import rewards_per_token
from lit_group_rl.functional.returns import gae, length_adaptive_lambda, whiten
from lit_group_rl.schedules.base import require, require_number
from lit_group_rl.types import Advantages, RolloutBatch


@dataclass(frozen=True)
class GAE(AdvantageEstimator):
    """Generalised advantage estimation on the critic's values; the score is paid at the last trained token.

    With ``critic_lam`` the critic's targets have their own lambda (decoupled GAE); with ``length_alpha`` the actor's
    lambda is 1 - 1 / (length_alpha * length) per completion, clamped to [0, 1], and ``lam`` serves the critic only.

    Source: GAE, arXiv:1506.02438; VC-PPO, arXiv:2503.01491 (critic_lam 1); VAPO, arXiv:2504.05118 (length_alpha 0.05).
    """

    gamma: float = 1.0
    """Discount per token."""
    lam: float = 0.95
    """lambda of the actor."""
    critic_lam: float | None = None
    """lambda of the critic's targets; null: the same as ``lam``."""
    length_alpha: float | None = None
    """alpha of the length-adaptive lambda; null: off."""
    whiten: bool = False
    """Whiten the advantages over all trained tokens of the step (sample variance, 1e-8 added to it)."""

    needs = frozenset({"values"})

    def __post_init__(self) -> None:
        require_number(self, "gamma", low=0.0, high=1.0)
        require_number(self, "lam", low=0.0, high=1.0)
        require(self.critic_lam is None or 0 <= self.critic_lam <= 1, self, "critic_lam", "must lie in [0, 1]")
        require(self.length_alpha is None or self.length_alpha > 0, self, "length_alpha", "must be above 0")

    def estimate(self, batch: RolloutBatch) -> Advantages:
        assert batch.values is not None
        mask = batch.mask & batch.counted[:, None]
        values = batch.values.detach().double()
        rewards = rewards_per_token(batch)
        lam = self.lam if self.length_alpha is None else length_adaptive_lambda(batch.mask.sum(1), self.length_alpha)
        advantages = gae(rewards, values, mask, self.gamma, lam)
        critic_lam = self.lam if self.critic_lam is None else self.critic_lam
        # a row without a score must not move the critic: its target is what the critic says already
        returns = gae(rewards, values, mask, self.gamma, critic_lam) + values
        if self.whiten:
            advantages = whiten(advantages, mask)
        return Advantages(advantages, torch.where(batch.mask, returns, 0.0))
