"""Gaussian noise inside the importance ratio: a mode of gspo_stochastic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.functional.rng import row_normals
from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.schedules.base import Clock, Number, require_number
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class NoisyRatio(ImportanceRatio):
    """log r[i, t] + sigma xi[i] - sigma^2 / 2, xi standard normal, one per completion, of (seed, step, row).

    Away from the edge of the clip the gradient is that of ``GaussianNoise``; near it rows are clipped at random, which
    changes the objective a little.  The second term keeps the mean of the ratio where it is.

    Source: a mode of the "group-based stochastic" interview note; no publication of that description was found.
    """

    base: ImportanceRatio
    """The ratio without noise."""
    sigma: Number = 0.2
    """Deviation of the noise; the note lets it fall from 0.2 to 0.01."""

    def __post_init__(self) -> None:
        require_number(self, "sigma", low=0.0)

    def log_ratio(self, token_log_ratio: Tensor, mask: Tensor) -> Tensor:
        return self.base.log_ratio(token_log_ratio, mask)

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        sigma = clock.at(self.sigma)
        xi = row_normals(batch.row_ids, batch.seed, "ratio_noise", clock.step)
        batch.features["ratio_noise"] = sigma * xi - sigma**2 / 2

    def perturbed(self, log_ratio: Tensor, batch: RolloutBatch) -> Tensor:
        noise = batch.features["ratio_noise"].to(log_ratio.dtype)[:, None]
        return torch.where(batch.mask, log_ratio + noise, log_ratio)
