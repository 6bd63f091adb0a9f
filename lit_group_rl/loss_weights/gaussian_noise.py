"""Random step sizes per completion: the noise of gspo_stochastic."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.functional.rng import row_normals
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import Clock, Number, require_number
from lit_group_rl.types import LossContext, RolloutBatch


def lognormal_weight(xi: Tensor, sigma: float) -> Tensor:
    """w = exp(sigma xi - sigma^2 / 2) of standard normal xi: mean 1, variance exp(sigma^2) - 1; 1 for sigma 0."""
    return (sigma * xi - sigma**2 / 2).exp()


@dataclass(frozen=True)
class GaussianNoise(LossWeight):
    """exp(sigma xi - sigma^2 / 2) per completion, xi standard normal and a function of (seed, step, row).

    To first order 1 + sigma xi: Gaussian noise on the gradient of the log-prob.  The mean is exactly 1, so the
    expected gradient stays what it is, with a clip too; only its variance grows.  It leaves a zero advantage at zero
    and changes nothing that is sampled: it neither speeds up tied groups nor explores.

    Source: an interview note ("group-based stochastic policy optimization", sigma 0.2 falling to 0.01); no publication
    of that description was found.  Noise added to the log-prob itself has no gradient.
    """

    sigma: Number = 0.2
    """Deviation of the noise."""

    def __post_init__(self) -> None:
        require_number(self, "sigma", low=0.0)

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        xi = row_normals(batch.row_ids, batch.seed, "gradient_noise", clock.step)
        batch.features["gradient_noise"] = lognormal_weight(xi, clock.at(self.sigma))

    def weight(self, ctx: LossContext) -> Tensor:
        return ctx.batch.features["gradient_noise"].to(ctx.logp.dtype)[:, None]
