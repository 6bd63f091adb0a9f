"""How likely a stored example is drawn again, by its age."""

from __future__ import annotations

import torch
from torch import Tensor


def replay_weights(ages: Tensor, half_life: float, max_staleness: int) -> Tensor:
    """2^(-age / half_life), and 0 above ``max_staleness``.  ``ages`` [n] in RL steps -> [n] float64."""
    weights = torch.exp2(-ages.double() / half_life)
    return torch.where(ages > max_staleness, 0.0, weights)


def draw_indices(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Indices drawn with replacement in proportion to the weights, by inverse CDF.

    ``weights`` [n] of at least one positive, ``uniforms`` [k] in [0, 1) -> [k].  Weights of 0 are never drawn.
    """
    cdf = weights.double().cumsum(0)
    at = torch.searchsorted(cdf, uniforms.double() * cdf[-1], right=True)
    last = int(weights.nonzero()[-1])  # rounding may put a uniform near 1 past the end
    return at.clamp(max=last)
