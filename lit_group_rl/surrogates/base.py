"""Ratio, bounds and advantage to a loss per token."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from lit_group_rl.types import Bounds, Component, LossContext


class Surrogate(Component):
    """The policy loss per token, to be minimised."""

    whole_groups: ClassVar[bool] = False
    """Compares the members of a group inside one micro-batch, so micro-batches must not cut groups."""
    uses_bounds: ClassVar[bool] = True
    """Reads low / high of the clip policy; a recipe that pairs bounds with a surrogate that ignores them is told so."""

    zero_without_advantage: ClassVar[bool] = False
    """A token whose advantage is 0 has no gradient; the module then leaves such rows out of the forward."""

    @abstractmethod
    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        """[B, T] with gradient; values where ``ctx.mask`` is False are ignored."""
