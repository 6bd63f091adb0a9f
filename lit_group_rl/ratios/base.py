"""How far the policy has moved since the rollout, per token or per sequence."""

from abc import abstractmethod

from torch import Tensor

from lit_group_rl.types import Component, RolloutBatch


class ImportanceRatio(Component):
    """Log of the importance ratio that clip policy and surrogate work on."""

    @abstractmethod
    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        """``token_log_ratio`` [B, T] = logp - old_logp with gradient, 0 off the mask -> [B, T] with gradient."""

    def perturbed(self, log_ratio: Tensor, batch: RolloutBatch) -> Tensor:
        """The log-ratio with what a component adds per row of the batch, [B, T] -> [B, T]; identity but for noise."""
        return log_ratio
