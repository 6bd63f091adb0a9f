"""Factors on the loss of a token or a row."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from lit_group_rl.types import Component, LossContext


class LossWeight(Component):
    """A detached factor on the policy loss; several multiply.  Auxiliary losses are not touched."""

    whole_minibatch: ClassVar[bool] = False
    """Needs ``observe`` with the whole minibatch under the current policy before each update."""

    def observe(self, ctx: LossContext) -> None:
        """See all rows of this process's minibatch without gradient; gather over processes for statistics."""

    @abstractmethod
    def weight(self, ctx: LossContext) -> Tensor:
        """[B, T] or broadcastable to it, without gradient."""
