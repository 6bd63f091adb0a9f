"""Learn more from good groups than from bad ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.functional.quality import group_quality, standardised_between_groups
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import Clock, Number, require_number
from lit_group_rl.types import LossContext, Problem, Recipe, RolloutBatch


@dataclass(frozen=True)
class GroupWeight(LossWeight):
    """Multiplies the loss of a group by max(0, 1 + strength * z[g]), z its quality standardised between groups.

    The order inside a group is untouched; only how far each group moves the policy changes.  A group without a known
    quality keeps weight 1.

    Source: a mode of the "groupwise supervised" interview note; no publication of that description was found.
    """

    quality: str
    """Name of the reward whose group mean is the quality."""
    strength: Number = 0.2
    """lambda: 0.1 to 0.3 in the note."""

    def __post_init__(self) -> None:
        require_number(self, "strength")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from recipe.missing_reward("model.loss_weights", self.quality)

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        quality, known = group_quality(batch.rewards[self.quality], batch.group_ids, batch.counted)
        z = standardised_between_groups(quality, known, batch.group_ids)
        batch.features[f"group_weight/{self.quality}"] = (1 + clock.at(self.strength) * z).clamp(min=0.0)

    def weight(self, ctx: LossContext) -> Tensor:
        return ctx.batch.features[f"group_weight/{self.quality}"].to(ctx.logp.dtype)[:, None]
