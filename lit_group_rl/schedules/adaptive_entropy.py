"""An entropy coefficient that acts only while the entropy is too low."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lit_group_rl.schedules.base import Clock, Schedule, require, require_number


def applied_and_next(
    coef: float, entropy: float, *, target: float, delta: float, low: float, high: float
) -> tuple[float, float]:
    """What acts at this entropy, and the coefficient of the next step.

    applied = coef if entropy <= target else 0      next = clip(coef +- delta, low, high), + if entropy <= target
    """
    short = entropy <= target
    return coef if short else 0.0, min(max(coef + (delta if short else -delta), low), high)


@dataclass
class AdaptiveEntropy(Schedule):
    """Rises by ``delta`` per step while the entropy is at most ``target``, falls above it; acts only below it.

    A step is gated by the entropy of the step before, the last one known.  The first acts with ``start``.

    Source: Skywork-OR1, arXiv:2505.22312.
    """

    target: float
    """Entropy aimed at, nats per token."""
    start: float = 0.0
    """Coefficient at the first RL step."""
    delta: float = 0.005
    """Change per RL step."""
    low: float = 0.0
    """Smallest coefficient."""
    high: float = 1.0
    """Largest coefficient."""
    metric: str = "policy/entropy"
    """The logged number that is steered."""
    _coef: float = field(default=0.0, init=False, repr=False, compare=False)
    _acts: bool = field(default=True, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_number(self, "target", low=0.0)
        require_number(self, "low")
        require_number(self, "high", low=self.low)
        require_number(self, "start", low=self.low, high=self.high)
        require(self.delta > 0, self, "delta", "must be above 0")
        self._coef = self.start

    def value(self, clock: Clock) -> float:
        return self._coef if self._acts else 0.0

    def observe(self, metrics: dict[str, float]) -> None:
        if self.metric in metrics:
            entropy = metrics[self.metric]
            self._acts = entropy <= self.target
            _, self._coef = applied_and_next(
                self._coef, entropy, target=self.target, delta=self.delta, low=self.low, high=self.high
            )

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self._coef, "acts": self._acts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._coef, self._acts = state["coef"], state["acts"]
