"""Which groups of a rollout are trained on."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from lit_group_rl.types import Component, Problem, Recipe, RolloutBatch


class GroupFilter(Component):
    """Drops groups after scoring; with ``max_rounds`` above 1 the module samples new prompts for the dropped ones."""

    max_rounds: int = 1
    """Sampling rounds at most, the first included: what is there after the last is trained on, never thrown away."""

    needs_group: ClassVar[bool] = False
    """Compares the members of a group."""

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if self.needs_group and recipe.group_size < 2:
            yield Problem(
                "model.filter",
                f"{type(self).__name__} drops groups whose members score alike: with group_size 1, all of them",
                "Set it to null, or raise model.sampler.group_size",
            )

    @abstractmethod
    def keep(self, batch: RolloutBatch) -> Tensor:
        """Rows to keep, [B] bool, equal within each group.  Sees raw scores, before any shaping."""
