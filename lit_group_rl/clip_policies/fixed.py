"""The same bounds for every token."""

from __future__ import annotations

from dataclasses import dataclass

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class FixedClip(ClipPolicy):
    """The ratio may move within [1 - low, 1 + high].

    Source: PPO, arXiv:1707.06347 (0.2 on both sides); with high above low: clip-higher of DAPO, arXiv:2503.14476,
    sec. 3.1 (0.2 / 0.28).
    """

    low: Number = 0.2
    """epsilon_low: how far the ratio may fall for a negative advantage."""
    high: Number = 0.2
    """epsilon_high: how far it may rise for a positive one."""
    cap: float | None = None
    """Two-sided clip (INTELLECT-2, arXiv:2505.07291): the ratio of the unclipped branch is at most this."""
    dual: float | None = None
    """Dual clip (arXiv:1912.09729): for a negative advantage the loss is at most -dual * A; the paper uses 3."""

    def __post_init__(self) -> None:
        require_number(self, "low", low=0.0, high=1.0)
        require_number(self, "high", low=0.0)
        require(self.cap is None or self.cap > 1, self, "cap", "must be above 1")
        require(self.dual is None or self.dual > 1, self, "dual", "must be above 1")

    def bounds(self, ctx: LossContext) -> Bounds:
        one = ctx.logp.new_ones(())
        return Bounds(one - ctx.clock.at(self.low), one + ctx.clock.at(self.high), cap=self.cap, dual=self.dual)
