"""A ramp from zero in front of another schedule."""

from dataclasses import dataclass

from lit_group_rl.schedules.base import Clock, Number, Schedule, require, require_number


@dataclass(frozen=True)
class WarmUp(Schedule):
    """target(step) * min((step + 1) / steps, 1): the first RL step already moves, the full value comes at ``steps``."""

    target: Number
    """What is reached: a number, or a schedule that runs on underneath."""
    steps: int
    """RL steps of the ramp."""

    def __post_init__(self) -> None:
        require_number(self, "target")
        require(self.steps > 0, self, "steps", "must be above 0")

    def value(self, clock: Clock) -> float:
        return clock.at(self.target) * min((clock.step + 1) / self.steps, 1.0)
