"""The scorers of reasoning-gym."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lit_group_rl.rewards.extract import Extract, extract_answer
from lit_group_rl.rewards.worker import LimitedReward
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import RecipeError, Sample

MAX_CHARACTERS = 2_000
"""A longer answer scores 0 unseen."""


@dataclass(frozen=True)
class ReasoningGymReward(LimitedReward):
    """The task's own score of the extracted answer, clamped to [0, 1] (extra ``reasoning-gym``).

    Many tasks pay a part for an answer that contains the right one.  That shapes learning but is no accuracy: put an
    ``ExactMatch`` of weight 0 first to have that measured.  Runs in a worker process, since some scorers hang.
    """

    weight: Number = 1.0
    """Weight in the total."""
    solved_at: float = 1.0
    """From this score on a completion counts as solved."""
    extract: Extract = "whole"
    """Which part of the completion is judged."""
    seconds: float = 5.0
    """Wall-clock limit of one completion."""
    batch_seconds: float = 60.0
    """Wall-clock limit of one process's completions of a step; what is left then counts as timed out."""
    workers: int = 1
    """Processes that score side by side, for each process that trains; more where a machine has cores to spare."""
    on_timeout: Literal["minimum", "abstain"] = "minimum"
    """A completion that hangs scores 0, or is not scored."""

    range = (0.0, 1.0)
    library = "reasoning_gym"
    extra = "reasoning-gym"

    def request(self, sample: Sample) -> tuple[Any, ...] | float | None:
        try:
            task, config, entry = (sample.fields[name] for name in ("task", "task_config", "entry"))
        except KeyError as error:
            raise RecipeError(
                f"model.rewards: ReasoningGymReward needs the column {error}, which only data.source ReasoningGym "
                "gives. Use that source, or another reward"
            ) from None
        found = extract_answer(sample.completion, self.extract)
        if not found or len(found) > MAX_CHARACTERS:
            return 0.0
        return "reasoning_gym", task, config, entry, found
