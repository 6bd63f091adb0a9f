"""How far a completion begins as it should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number, require
from lit_group_rl.types import Sample


@dataclass(frozen=True)
class Follows(Reward):
    """Share of ``template`` that the completion begins with, letter by letter: leads a policy to a form it never wrote.

        score = common prefix / length of the template

    For a tool call on the question itself: ``<{prompt}>``.  It pays each further right letter alike, so that a call
    can be learned from its first one on; give it a small weight beside a reward for the answer.  Prompts that are chat
    messages, and samples without a value for a field of the template, are not scored.
    """

    template: str
    """Text with ``{prompt}``, ``{answer}`` or the name of any other column of the data in braces."""
    strip: str = ""
    """Letters taken off the end of the prompt, e.g. ``=``."""
    weight: Number = 0.2
    """Weight in the total."""

    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(bool(self.template), self, "template", "must not be empty")

    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._one(s) for s in samples]

    def _one(self, sample: Sample) -> float | None:
        if not isinstance(sample.prompt, str):
            return None
        known = {**sample.fields, "prompt": sample.prompt.rstrip(self.strip or None), "answer": sample.answer}
        try:
            wanted = self.template.format_map(known)
        except (KeyError, IndexError, ValueError):
            return None
        pairs = zip(wanted, sample.completion, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) / len(wanted)
