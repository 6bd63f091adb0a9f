"""Advantages held within a band of deviations: the literal clip of dapo_dynamic_clip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.functional.moments import MovingMoments
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Advantages, RolloutBatch


def winsorise(values: Tensor, mask: Tensor, mean: float, std: float, k: float) -> Tensor:
    """clip(v, mean - k std, mean + k std) under the mask, 0 elsewhere.  Any shape."""
    return torch.where(mask, values.clamp(mean - k * std, mean + k * std), torch.zeros_like(values))


@dataclass
class WinsorisedAdvantage(AdvantageEstimator):
    """Clips advantages to mean +- k deviations over the trained tokens of the step, smoothed over steps.

    The reading of "clip range = mean +- 2 sigma" in which the units agree.  It bounds outliers; it is no trust region,
    so keep a clip policy beside it.

    Source: a mode of the "dynamic advantage" interview note; no publication of that description was found.
    """

    base: AdvantageEstimator
    """The estimator whose advantages are clipped."""
    k: float = 2.0
    """Half-width of the band in deviations."""
    decay: float = 0.9
    """m of the moving moments; 0 takes those of the step alone."""
    _moments: MovingMoments = field(default_factory=lambda: MovingMoments(0.0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.k > 0, self, "k", "must be above 0")
        require(0 <= self.decay < 1, self, "decay", "must lie in [0, 1)")
        self._moments.decay = self.decay

    def estimate(self, batch: RolloutBatch) -> Advantages:
        result = self.base.estimate(batch)
        mask = batch.mask & batch.counted[:, None]
        self._moments.update(result.values, mask)
        clipped = winsorise(result.values, mask, self._moments.mean, self._moments.std, self.k)
        return Advantages(clipped, result.returns)

    def state_dict(self) -> dict[str, Any]:
        return self._moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments.load_state_dict(state)
