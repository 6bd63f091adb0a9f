"""Ratio, bounds and advantage to a loss per token."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from lit_group_rl.types import Bounds, Component, LossContext, Problem, Recipe


class Surrogate(Component):
    """The policy loss per token, to be minimised."""

    whole_groups: ClassVar[bool] = False
    """Compares the members of a group inside one micro-batch, so micro-batches must not cut groups."""
    uses_bounds: ClassVar[bool] = True
    """Reads low / high of the clip policy; a recipe that pairs bounds with a surrogate that ignores them is told so."""

    zero_without_advantage: ClassVar[bool] = False
    """A token whose advantage is 0 has no gradient; the module then leaves such rows out of the forward."""

    trust_region: ClassVar[bool] = False
    """Holds the policy near the one that drew the completions by its own shape, without a clip policy."""

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if self.trust_region and recipe.updates_per_rollout == 1:
            yield Problem(
                "model.surrogate",
                f"with one update per rollout the ratio is 1 and {type(self).__name__} is plain policy gradient",
                "Set model.minibatches or model.ppo_epochs above 1, or surrogate to Reinforce",
                warning=True,
            )

    @abstractmethod
    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        """[B, T] with gradient; values where ``ctx.mask`` is False are ignored."""
