"""Loss per token to one number."""

from abc import abstractmethod

from torch import Tensor

from lit_group_rl.types import Component, Counts


class LossAggregator(Component):
    """Reduces [B, T] to a scalar so that the sum over micro-batches and processes is the minibatch's loss."""

    @abstractmethod
    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        """This micro-batch's share.  ``counts`` are those of the whole minibatch; an empty mask gives 0, not NaN."""
