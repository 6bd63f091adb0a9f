"""An advantage that also tells good groups from bad ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.quality import group_quality, standardised_between_groups
from lit_group_rl.schedules.base import require_number
from lit_group_rl.types import Advantages, Problem, Recipe, RolloutBatch


@dataclass(frozen=True)
class BetweenGroup(AdvantageEstimator):
    """A[i] + strength * z[g], z the quality of the row's group standardised between the groups of the step.

    Added after another estimator has centred inside groups: a constant on all rewards of a group would be taken off
    again.  It is the policy gradient of the expected quality with the mean of the step as baseline.

    Source: a mode of the "groupwise supervised" interview note; no publication of that description was found.
    """

    base: AdvantageEstimator
    """The estimator inside groups."""
    quality: str
    """Name of the reward whose group mean is the quality."""
    strength: float = 0.2
    """lambda: 0.1 to 0.3 in the note."""
    ddof: int = 0
    """Divide the squares between groups by n - ddof."""
    eps: float = 1e-6
    """Added to the deviation between groups."""

    def __post_init__(self) -> None:
        require_number(self, "strength")
        require_number(self, "eps", low=0.0)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from recipe.missing_reward("model.advantage.quality", self.quality)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        inside = self.base.estimate(batch)
        quality, known = group_quality(batch.rewards[self.quality], batch.group_ids, batch.counted)
        z = standardised_between_groups(quality, known, batch.group_ids, ddof=self.ddof, eps=self.eps)
        return Advantages(inside.values + per_token(self.strength * z, batch), inside.returns)
