"""Which groups of a rollout are trained on."""

from abc import abstractmethod

from torch import Tensor

from lit_group_rl.types import Component, RolloutBatch


class GroupFilter(Component):
    """Drops groups after scoring; with ``max_rounds`` above 1 the module samples new prompts for the dropped ones."""

    max_rounds: int = 1
    """Sampling rounds at most, the first included: what is there after the last is trained on, never thrown away."""

    @abstractmethod
    def keep(self, batch: RolloutBatch) -> Tensor:
        """Rows to keep, [B] bool, equal within each group.  Sees raw scores, before any shaping."""
