"""Absolute bounds of the ratio."""

from __future__ import annotations

from dataclasses import dataclass

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class RatioRange(ClipPolicy):
    """The ratio may move within [ratio_min, ratio_max], given as they are and not as distances from 1.

    CISPO bounds the weight from above only and its paper does not publish the bound; ScaleRL uses 5.  Libraries
    differ: what TRL calls epsilon_high is ``ratio_max`` here, what verl calls clip_ratio_high is ``ratio_max`` - 1.

    Source: CISPO (MiniMax-M1), arXiv:2506.13585, eq. 5; ScaleRL, arXiv:2510.13786.
    """

    ratio_min: float | None = None
    """Lower bound; null: none."""
    ratio_max: float | None = 5.0
    """Upper bound; null: none."""

    def __post_init__(self) -> None:
        require(self.ratio_min is None or 0 <= self.ratio_min <= 1, self, "ratio_min", "must lie in [0, 1]")
        require(self.ratio_max is None or self.ratio_max >= 1, self, "ratio_max", "must be at least 1")

    def bounds(self, ctx: LossContext) -> Bounds:
        low = None if self.ratio_min is None else ctx.logp.new_tensor(self.ratio_min)
        high = None if self.ratio_max is None else ctx.logp.new_tensor(self.ratio_max)
        return Bounds(low, high)
