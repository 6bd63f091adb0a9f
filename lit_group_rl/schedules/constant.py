"""The same value at every step."""

from dataclasses import dataclass

from lit_group_rl.schedules.base import Clock, Schedule, require_number


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step; a plain number in the recipe means this."""

    constant: float
    """The value."""

    def __post_init__(self) -> None:
        require_number(self, "constant")

    def value(self, clock: Clock) -> float:
        return self.constant
