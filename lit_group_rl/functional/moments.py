"""Running mean and deviation of a batch statistic, equal on all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lit_group_rl.functional.collectives import all_rows
from lit_group_rl.functional.masked import masked_mean, masked_std


def batch_moments(values: Tensor, valid: Tensor) -> tuple[float, float] | None:
    """Mean and population deviation of the valid values of all processes; None if there are none.  Any shape."""
    everyone, counts = all_rows(values.double().flatten()), all_rows(valid.flatten())
    if not counts.any():
        return None
    return float(masked_mean(everyone, counts)), float(masked_std(everyone, counts, ddof=0))


@dataclass
class MovingMoments:
    """Exponential moving average of the first two moments; the first batch is taken as it is.

        mean <- m mean + (1 - m) mean_batch        E[x^2] <- m E[x^2] + (1 - m) E[x^2]_batch

    Kept as mean and variance, which is the same in exact arithmetic and loses no digits to a large offset.
    """

    decay: float
    """m: 0 forgets at once."""
    mean: float = 0.0
    variance: float = 0.0
    seen: bool = False

    @property
    def std(self) -> float:
        """Deviation from the average of the moments."""
        return self.variance**0.5

    def update(self, values: Tensor, valid: Tensor) -> None:
        """Take in a batch, once per rollout; a batch without a valid value changes nothing.  A collective."""
        batch = batch_moments(values, valid)
        if batch is None:
            return
        mean, std = batch
        m = self.decay if self.seen else 0.0
        self.variance = m * self.variance + (1 - m) * std**2 + m * (1 - m) * (self.mean - mean) ** 2
        self.mean = m * self.mean + (1 - m) * mean
        self.seen = True

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"mean": self.mean, "variance": self.variance, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.mean, self.variance, self.seen = state["mean"], state["variance"], state["seen"]
