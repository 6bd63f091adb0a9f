"""The trust region: where the ratio may move."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from lit_group_rl.types import Bounds, Component, LossContext, Problem, Recipe


class ClipPolicy(Component):
    """Gives the bounds of the ratio.  Running statistics are taken in ``prepare``, once per rollout."""

    binds: ClassVar[bool] = True
    """Can bound anything at all."""

    def pre(self, token_log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        """Act on the token log-ratios before the ratio component sees them, [B, T] -> [B, T]; identity but for GMPO."""
        return token_log_ratio

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        field = "model.clip_policy"
        if not self.binds:
            return
        acts_before_the_ratio = type(self).pre is not ClipPolicy.pre
        if not recipe.parts["surrogate"].uses_bounds and not acts_before_the_ratio:
            name = type(recipe.parts["surrogate"]).__name__
            yield Problem(field, f"{name} does not read bounds, so it has no effect", "Set it to NoClip", warning=True)
        elif recipe.updates_per_rollout == 1:
            yield Problem(
                field,
                "with one update per rollout the ratio is 1 and clipping has no effect",
                "Set model.minibatches or model.ppo_epochs above 1, or clip_policy to NoClip",
                warning=True,
            )

    @abstractmethod
    def bounds(self, ctx: LossContext) -> Bounds:
        """The bounds for one micro-batch."""
