"""The trust region: where the ratio may move."""

from abc import abstractmethod

from torch import Tensor

from lit_group_rl.types import Bounds, Component, LossContext


class ClipPolicy(Component):
    """Gives the bounds of the ratio.  Running statistics are taken in ``prepare``, once per rollout."""

    def pre(self, token_log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        """Act on the token log-ratios before the ratio component sees them, [B, T] -> [B, T]; identity but for GMPO."""
        return token_log_ratio

    @abstractmethod
    def bounds(self, ctx: LossContext) -> Bounds:
        """The bounds for one micro-batch."""
