"""The right answer and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.extract import Extract, extract_answer
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import Sample


@dataclass(frozen=True)
class ExactMatch(Reward):
    """1 if the extracted answer is the sample's answer, else 0; surrounding white space does not count.

    A sample without an answer, or with an empty one, is not scored: nothing could be wrong about it.
    """

    weight: Number = 1.0
    """Weight in the total."""
    extract: Extract = "whole"
    """Which part of the completion is compared."""
    ignore_case: bool = False
    """Compare without regard to case."""

    range = (0.0, 1.0)

    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._one(s) for s in samples]

    def _one(self, sample: Sample) -> float | None:
        if sample.answer is None or not sample.answer.strip():
            return None
        found, answer = extract_answer(sample.completion, self.extract), sample.answer.strip()
        if found is None:
            return 0.0
        if self.ignore_case:
            found, answer = found.casefold(), answer.casefold()
        return float(found == answer)
