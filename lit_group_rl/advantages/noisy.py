"""Gaussian noise on the advantage of each completion: a mode of gspo_stochastic."""

from __future__ import annotations

from dataclasses import dataclass

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.rng import row_normals
from lit_group_rl.schedules.base import Clock, Number, require_number
from lit_group_rl.types import Advantages, RolloutBatch


@dataclass(frozen=True)
class NoisyAdvantage(AdvantageEstimator):
    """A[i] + sigma * xi[i], xi standard normal, one per completion, a function of (seed, step, row).

    The noise pushes also where a group is tied, but what it adds there is a random walk, not signal.

    Source: a mode of the "group-based stochastic" interview note; no publication of that description was found.
    """

    base: AdvantageEstimator
    """The estimator without noise."""
    sigma: Number = 0.2
    """Deviation of the noise; the note lets it fall from 0.2 to 0.01."""

    def __post_init__(self) -> None:
        require_number(self, "sigma", low=0.0)

    def estimate(self, batch: RolloutBatch) -> Advantages:
        return self.base.estimate(batch)

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        assert batch.advantages is not None
        xi = row_normals(batch.row_ids, batch.seed, "advantage_noise", clock.step)
        batch.advantages = batch.advantages + per_token(clock.at(self.sigma) * xi, batch)
