"""What the evaluator says, as a reward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import Problem, Recipe, RolloutBatch, Sample


@dataclass(frozen=True)
class EvaluatorScore(Reward):
    """The soft reward of ``model.evaluator``; abstains on completions that it has not read (held-out evaluation).

    To mix it with a verifier, R = (1 - a) R_verifier + a R_soft, give the two the weights 1 - a and a.
    """

    weight: Number = 1.0
    """Weight in the total."""

    needs = frozenset({"evaluator"})

    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        return [None] * len(samples)

    def score_batch(self, batch: RolloutBatch) -> list[float | None]:
        soft = batch.features.get("evaluator")
        if soft is None:
            return self.score(batch.samples)
        assert not soft.requires_grad, "a reward is a number: nothing may flow from the evaluator into the policy"
        return soft.tolist()

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if recipe.parts.get("evaluator") is None:
            yield Problem(
                "model.evaluator",
                "EvaluatorScore pays what the evaluator says, and the recipe has none",
                "Set model.evaluator to DualAgent, or leave the reward out",
            )
