"""The models learn in turns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lit_group_rl.schedules.base import Clock, require
from lit_group_rl.types import Problem, Recipe
from lit_group_rl.update_schedules.base import MODELS, UpdateSchedule, missing_models


@dataclass(frozen=True)
class Alternate(UpdateSchedule):
    """``warm_up`` once, in order, then ``cycle`` over and over: exactly one model learns in each RL step.

    warm_up {evaluator: 3}, cycle [[evaluator, 1], [policy, 2]]  ->  E E E  E P P  E P P ...
    """

    cycle: list[tuple[str, int]]
    """[model, RL steps] in turn."""
    warm_up: dict[str, int] = field(default_factory=dict)
    """Model -> RL steps in which it learns alone before the first cycle."""

    def __post_init__(self) -> None:
        names = [*self.warm_up, *(name for name, _ in self.cycle)]
        wrong = next((name for name in names if name not in MODELS), None)
        require(wrong is None, self, "warm_up" if wrong in self.warm_up else "cycle", f"may name {', '.join(MODELS)}")
        require(all(steps >= 0 for steps in self.warm_up.values()), self, "warm_up", "must count 0 or more RL steps")
        require(all(steps >= 1 for _, steps in self.cycle), self, "cycle", "needs turns of 1 RL step or more")
        require("policy" in dict(self.cycle), self, "cycle", "must give the policy a turn: it would never learn")

    def active(self, clock: Clock) -> frozenset[str]:
        step = clock.step
        for name, steps in self.warm_up.items():
            if step < steps:
                return frozenset({name})
            step -= steps
        step %= sum(steps for _, steps in self.cycle)
        for name, steps in self.cycle:
            if step < steps:
                return frozenset({name})
            step -= steps
        raise AssertionError

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from missing_models(recipe, {*self.warm_up, *(name for name, _ in self.cycle)})
        for name in ("critic", "evaluator"):
            if recipe.parts.get(name) is not None and name not in dict(self.cycle) and not self.warm_up.get(name):
                yield Problem(
                    "model.update_schedule.cycle",
                    f"the {name} has no turn and would never learn",
                    f"Add [{name}, 1] to the cycle, or set model.{name} to null",
                )
