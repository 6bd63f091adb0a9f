"""Which models learn at which RL step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Component, Problem, Recipe

MODELS = ("policy", "critic", "evaluator")
"""Names of the models a recipe can have."""


class UpdateSchedule(Component):
    """Chooses among 'policy', 'critic' and 'evaluator'; whoever is not chosen stays bit-identical in that step."""

    @abstractmethod
    def active(self, clock: Clock) -> frozenset[str]:
        """Names of the models that learn in this RL step."""


def missing_models(recipe: Recipe, names: Iterable[str]) -> Iterable[Problem]:
    """A problem for each model that a schedule names and the recipe does not have."""
    for name in sorted(set(names) - {"policy"}):
        if recipe.parts.get(name) is None:
            yield Problem(
                "model.update_schedule",
                f"it lets the {name} learn, and the recipe has none",
                f"Set model.{name}, or update_schedule to null",
            )
