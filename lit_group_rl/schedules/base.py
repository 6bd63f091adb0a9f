"""A number that may change over a run: accepted wherever a component takes a float."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from lit_group_rl.types import Component


@dataclass(frozen=True)
class Clock:
    """Where the run stands, in RL steps."""

    step: int
    """Finished RL steps: 0 during the first."""
    total: int
    """RL steps of the whole run."""

    def at(self, number: Number) -> float:
        """The value of a plain number or a schedule at this step."""
        return number.value(self) if isinstance(number, Schedule) else float(number)


class Schedule(Component):
    """RL step to value."""

    @abstractmethod
    def value(self, clock: Clock) -> float:
        """The value during the RL step ``clock.step``."""

    def observe(self, metrics: dict[str, float]) -> None:
        """Look at the metrics of a finished RL step; adaptive schedules move here."""


Number = float | Schedule
"""A float or a Schedule."""


def require(ok: bool, where: object, option: str, rule: str) -> None:
    """Refuse a bad option, naming class, option and rule: ``require(eps > 0, self, "eps", "must be above 0")``."""
    if not ok:
        raise ValueError(f"{type(where).__name__}({option}={getattr(where, option)!r}): {option} {rule}")


def require_number(where: object, option: str, *, low: float = -math.inf, high: float = math.inf) -> None:
    """Refuse a number out of [low, high]; a schedule checks its own end points when it is built."""
    value = getattr(where, option)
    if not isinstance(value, Schedule):
        require(math.isfinite(value) and low <= value <= high, where, option, f"must lie in [{low:g}, {high:g}]")


def share(clock: Clock, steps: int | None, start: int = 0) -> float:
    """How much of a ramp is behind: 0 at ``start``, 1 after ``steps`` more RL steps (None: at the end of the run)."""
    length = max(1, clock.total - start) if steps is None else steps
    return min(max((clock.step - start) / length, 0.0), 1.0)
