"""Absolute bounds of the ratio that depend on the sign of the advantage."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class SignedRange(ClipPolicy):
    """One range of the ratio for tokens with an advantage above 0, another for the rest.

    With the importance-weighted surrogate, the defaults are TOPR: right answers are learned as in supervised
    training, wrong ones with a weight that fades as they become unlikely.  Four bounds of their own give DISPO.

    Source: TOPR, arXiv:2503.14286; DISPO, arXiv:2602.00983.
    """

    positive_min: float = 1.0
    """Lower bound where the advantage is above 0."""
    positive_max: float = 1.0
    """Upper bound where the advantage is above 0."""
    negative_min: float = 0.0
    """Lower bound elsewhere."""
    negative_max: float = 1.0
    """Upper bound elsewhere."""

    def __post_init__(self) -> None:
        for sign in ("positive", "negative"):
            require(0 <= getattr(self, f"{sign}_min") <= 1, self, f"{sign}_min", "must lie in [0, 1]")
            require(getattr(self, f"{sign}_max") >= 1, self, f"{sign}_max", "must be at least 1")

    def bounds(self, ctx: LossContext) -> Bounds:
        positive = ctx.advantages > 0
        number = ctx.logp.new_tensor
        return Bounds(
            torch.where(positive, number(self.positive_min), number(self.negative_min)),
            torch.where(positive, number(self.positive_max), number(self.negative_max)),
        )
