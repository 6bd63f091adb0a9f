"""The right length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number, require
from lit_group_rl.types import Sample


@dataclass(frozen=True)
class Length(Reward):
    """1 inside [shortest, longest] tokens, falling linearly to 0 over ``falloff`` tokens on either side.

        score = max(0, 1 - max(shortest - n, n - longest, 0) / falloff)

    It pays any content of that length, so use it beside a reward for the answer.
    """

    longest: int
    """Most tokens with the full score, the end token included."""
    shortest: int = 1
    """Fewest tokens with the full score."""
    falloff: int = 1
    """Tokens beyond the bounds over which the score falls to 0."""
    weight: Number = 0.1
    """Weight in the total."""

    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(self.shortest >= 0, self, "shortest", "must be at least 0")
        require(self.longest >= self.shortest, self, "longest", f"must be at least shortest={self.shortest}")
        require(self.falloff >= 1, self, "falloff", "must be at least 1")

    def score(self, samples: Sequence[Sample]) -> list[float]:
        outside = [max(self.shortest - s.num_tokens, s.num_tokens - self.longest, 0) for s in samples]
        return [max(0.0, 1 - out / self.falloff) for out in outside]
