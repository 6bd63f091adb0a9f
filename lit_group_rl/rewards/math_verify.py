"""Mathematical equality, judged by math-verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lit_group_rl.rewards.extract import Extract, extract_answer
from lit_group_rl.rewards.worker import LimitedReward
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import Sample

MAX_CHARACTERS = 20_000
"""Of a completion, its end: the answer stands there, and parsing takes longer than linear time."""


@dataclass(frozen=True)
class MathVerify(LimitedReward):
    """1 if the completion's answer equals the sample's mathematically, else 0 (extra ``math``).

    Its time is bounded by a worker process, because some expressions take math-verify for ever.  A sample whose answer
    it cannot read is not scored.  It takes the last of several answers, so "41 or 42" passes for 42; with
    ``extract: answer_tag`` and a format reward such hedging does not pay.
    """

    weight: Number = 1.0
    """Weight in the total."""
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
    library = "math_verify"
    extra = "math"

    def request(self, sample: Sample) -> tuple[Any, ...] | float | None:
        if not (sample.answer or "").strip():
            return None
        found = extract_answer(sample.completion, self.extract)
        return ("math_verify", sample.answer, found[-MAX_CHARACTERS:]) if found else 0.0
