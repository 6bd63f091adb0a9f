"""The right form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number, require
from lit_group_rl.types import Sample

TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True)
class Format(Reward):
    """1 if a regular expression matches the whole completion, else 0; ``.`` matches line breaks too.

    It judges the form alone and pays any content, so give it a small weight beside a reward for the answer.
    """

    pattern: str
    """Regular expression of Python's re, e.g. ``.*#### -?[0-9]+``."""
    weight: Number = 0.1
    """Weight in the total."""

    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            require(False, self, "pattern", f"is not a regular expression: {error}")

    def score(self, samples: Sequence[Sample]) -> list[float]:
        compiled = re.compile(self.pattern, re.DOTALL)
        return [float(compiled.fullmatch(s.completion.strip()) is not None) for s in samples]


def is_think_answer(text: str, *, opened: bool = False) -> bool:
    """True for exactly ``<think>..</think><answer>..</answer>``, each tag once, neither part blank.

    White space around the blocks is allowed, other text is not.  ``opened``: the prompt has written ``<think>``.
    """
    text = ("<think>" if opened else "") + text.strip()
    if any(text.count(tag) != 1 for tag in TAGS):
        return False
    before, _, rest = text.partition("<think>")
    thought, _, rest = rest.partition("</think>")
    between, _, rest = rest.partition("<answer>")
    answer, _, after = rest.partition("</answer>")
    if any(tag in part for part in (before, thought, between, answer) for tag in TAGS):
        return False
    return not (before.strip() or between.strip() or after.strip()) and bool(thought.strip()) and bool(answer.strip())


@dataclass(frozen=True)
class ThinkAnswerFormat(Reward):
    """1 for one think block followed by one answer block, as :func:`is_think_answer`, else 0.

    Source: the format reward of DeepSeek-R1, arXiv:2501.12948, sec. 2.2.2.
    """

    opened: bool = False
    """The prompt template has already written the opening think tag."""
    weight: Number = 0.1
    """Weight in the total."""

    range = (0.0, 1.0)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [float(is_think_answer(s.completion, opened=self.opened)) for s in samples]
