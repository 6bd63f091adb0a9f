"""A constant factor per step."""

from dataclasses import dataclass

from lit_group_rl.schedules.base import Clock, Schedule, require, require_number, share


@dataclass(frozen=True)
class Exponential(Schedule):
    """start * (end / start) ^ min(step / steps, 1)."""

    start: float
    """Value at the first RL step, above 0."""
    end: float
    """Value from RL step ``steps`` on, above 0."""
    steps: int | None = None
    """RL steps of the decay; null: the whole run."""

    def __post_init__(self) -> None:
        for option in ("start", "end"):
            require_number(self, option)
            require(getattr(self, option) > 0, self, option, "must be above 0")
        require(self.steps is None or self.steps > 0, self, "steps", "must be above 0")

    def value(self, clock: Clock) -> float:
        return self.start * (self.end / self.start) ** share(clock, self.steps)
