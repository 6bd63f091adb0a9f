"""The critic first, alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lit_group_rl.schedules.base import Clock, require
from lit_group_rl.types import Problem, Recipe
from lit_group_rl.update_schedules.base import MODELS, UpdateSchedule, missing_models


@dataclass(frozen=True)
class CriticWarmUp(UpdateSchedule):
    """For the first ``steps`` RL steps the critic learns the returns of the policy, which stands still; then all learn.

    With GAE(critic_lam=1) its targets are Monte-Carlo returns: the value pretraining of VC-PPO, arXiv:2503.01491, and
    the 50 warm-up steps of VAPO, arXiv:2504.05118.
    """

    steps: int = 50
    """RL steps of the critic alone; 0 = none."""

    def __post_init__(self) -> None:
        require(self.steps >= 0, self, "steps", "must be 0 or more")

    def active(self, clock: Clock) -> frozenset[str]:
        return frozenset({"critic"} if clock.step < self.steps else MODELS)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from missing_models(recipe, {"critic"})
