"""The right number, however it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.extract import find_number
from lit_group_rl.schedules.base import Number, require_number
from lit_group_rl.types import Sample


@dataclass(frozen=True)
class NumericMatch(Reward):
    r"""1 if |number - answer| <= tolerance + relative * |answer|, else 0; computed in exact fractions.

    The number is read by an own parser, never evaluated: ``2,500``, ``0.50``, ``1/2``, ``\frac{1}{2}``, ``1e3``; a unit
    or a percent sign behind it is ignored, so 50% is 50.  In the answer column a whole solution may stand; its number
    is found in the same way.  An answer without a number leaves the sample unscored.
    """

    weight: Number = 1.0
    """Weight in the total."""
    find: Literal["auto", "boxed", "marker", "last", "whole"] = "auto"
    r"""Where the number stands: in \boxed{}, behind ####, last in the text, or all of it; auto tries in turn."""
    tolerance: float = 0.0
    """Allowed difference."""
    relative: float = 0.0
    """Allowed difference as a share of the answer."""

    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        require_number(self, "tolerance", low=0.0)
        require_number(self, "relative", low=0.0, high=1.0)

    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._one(s) for s in samples]

    def _one(self, sample: Sample) -> float | None:
        gold = find_number(sample.answer or "")
        if gold is None:
            return None
        found = find_number(sample.completion, self.find)
        allowed = Fraction(self.tolerance) + Fraction(self.relative) * abs(gold)
        return float(found is not None and abs(found - gold) <= allowed)
