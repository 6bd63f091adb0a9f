"""Half a cosine between two values."""

import math
from dataclasses import dataclass

from lit_group_rl.schedules.base import Clock, Schedule, require, require_number, share


@dataclass(frozen=True)
class Cosine(Schedule):
    """end + (start - end) * (1 + cos(pi * min(step / steps, 1))) / 2."""

    start: float
    """Value at the first RL step."""
    end: float
    """Value from RL step ``steps`` on."""
    steps: int | None = None
    """RL steps of the half wave; null: the whole run."""

    def __post_init__(self) -> None:
        require_number(self, "start")
        require_number(self, "end")
        require(self.steps is None or self.steps > 0, self, "steps", "must be above 0")

    def value(self, clock: Clock) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * share(clock, self.steps))) / 2
