"""A coefficient that steers the divergence from the reference towards a target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lit_group_rl.schedules.base import Clock, Schedule, require, require_number


def adapted(coef: float, kl: float, target: float, gain: float) -> float:
    """coef * (1 + gain * clip(kl / target - 1, -0.2, 0.2)): a proportional controller in log space."""
    return coef * (1 + gain * min(max(kl / target - 1, -0.2), 0.2))


@dataclass
class AdaptiveKL(Schedule):
    """Grows while the logged divergence lies above the target, shrinks below it.

    Source: arXiv:1909.08593, sec. 2.2 (gain 0.1).  Trainers that speak of a horizon use completions per step / horizon.
    """

    start: float
    """Coefficient at the first RL step."""
    target: float
    """Divergence aimed at, in the unit of the metric."""
    gain: float = 0.1
    """K_beta: how fast it follows, per RL step."""
    metric: str = "policy/kl_ref"
    """The logged number that is steered."""
    _coef: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_number(self, "start", low=0.0)
        require(self.target > 0, self, "target", "must be above 0")
        require(0 < self.gain <= 1, self, "gain", "must lie in (0, 1]")
        self._coef = self.start

    def value(self, clock: Clock) -> float:
        return self._coef

    def observe(self, metrics: dict[str, float]) -> None:
        if self.metric in metrics:
            self._coef = adapted(self._coef, metrics[self.metric], self.target, self.gain)

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self._coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coef = state["coef"]
