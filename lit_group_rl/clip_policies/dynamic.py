"""Clip ranges that follow the distribution of the rewards: dapo_dynamic_clip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.functional.collectives import all_rows
from lit_group_rl.functional.moments import MovingMoments
from lit_group_rl.functional.selection import quantile
from lit_group_rl.schedules.base import Clock, require
from lit_group_rl.types import Bounds, LossContext, RolloutBatch

FEATURE = "dynamic_clip_width"


def z_score_width(
    scores: Tensor, mean: float, std: float, *, middle: float, slope: float, low: float, high: float, z_max: float
) -> Tensor:
    """clip(middle + slope * z, low, high), z = clip((s - mean) / std, -z_max, z_max), 0 if std is 0.  [B] -> [B]."""
    z = ((scores.double() - mean) / std).clamp(-z_max, z_max) if std > 0 else torch.zeros_like(scores.double())
    return (middle + slope * z).clamp(low, high)


def mid_ranks(scores: Tensor, everyone: Tensor) -> Tensor:
    """(number of scores below + half the number of equal ones) / B, so that equal scores share a rank in (0, 1).

    ``scores`` [b] among ``everyone`` [B] -> [b] float64.
    """
    ordered = everyone.sort().values
    below = torch.searchsorted(ordered, scores.contiguous())
    upto = torch.searchsorted(ordered, scores.contiguous(), right=True)
    return (below + upto).double() / (2 * max(len(ordered), 1))


def quantile_width(
    scores: Tensor, lower: Tensor | float, upper: Tensor | float, *, bottom: float, middle: float, top: float
) -> Tensor:
    """``top`` above the upper threshold, ``bottom`` below the lower, ``middle`` between and at them.  [B] -> [B]."""
    width = torch.full_like(scores, middle, dtype=torch.float64)
    width[scores > upper] = top
    width[scores < lower] = bottom
    return width


@dataclass
class _RewardWidth(ClipPolicy):
    """One epsilon per completion, set once per rollout: the ratio may move within [1 - eps, 1 + eps]."""

    def widths(self, scores: Tensor, valid: Tensor) -> Tensor:
        """Epsilon of each row, [B]; a collective."""
        raise NotImplementedError

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        assert batch.scores is not None
        batch.features[FEATURE] = self.widths(batch.scores.nan_to_num(), batch.counted)

    def bounds(self, ctx: LossContext) -> Bounds:
        width = ctx.batch.features[FEATURE].to(ctx.logp.dtype)[:, None]
        ctx.metrics.masked("schedule/clip_width", width.expand_as(ctx.logp), ctx.mask)
        return Bounds(1 - width, 1 + width)


@dataclass
class DynamicZScoreClip(_RewardWidth):
    """A wider range the further the score lies above its running mean, a narrower one below.

        eps[i] = clip(middle + slope * z[i], low, high)        z[i] = clip((s[i] - mean) / std, -z_max, z_max)

    Mean and deviation are moving averages over steps, of all processes, taken once per rollout.  With the defaults 0.2
    at the mean, 0.1 from one deviation below, 0.4 at two above.  For a positive advantage only the upper bound can
    bind, for a negative one only the lower: where the high scores are the positive rows this is close to an asymmetric
    clip, so compare with that.

    Source: an interview note ("dynamic advantage policy optimization": mean +- 2 sigma, at most 0.4, EMA); no
    publication of that description was found.  Bounding a ratio by reward values, as written there, would mix units.
    """

    middle: float = 0.2
    """Epsilon at the mean."""
    slope: float = 0.1
    """kappa: change per deviation; 0.05 spans 0.1 to 0.3."""
    low: float = 0.1
    """Smallest epsilon."""
    high: float = 0.4
    """Largest epsilon."""
    z_max: float = 2.0
    """Deviations beyond which nothing changes."""
    decay: float = 0.9
    """m of the moving moments; 0 takes those of the step alone."""
    _moments: MovingMoments = field(default_factory=lambda: MovingMoments(0.0), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(0 <= self.low <= 1, self, "low", "must lie in [0, 1]")
        require(self.low <= self.middle <= self.high, self, "middle", f"must lie in [{self.low:g}, {self.high:g}]")
        require(self.high < 1, self, "high", "must be below 1")
        require(self.slope >= 0, self, "slope", "must be at least 0")
        require(self.z_max > 0, self, "z_max", "must be above 0")
        require(0 <= self.decay < 1, self, "decay", "must lie in [0, 1)")
        self._moments.decay = self.decay

    def widths(self, scores: Tensor, valid: Tensor) -> Tensor:
        self._moments.update(scores, valid)
        return z_score_width(
            scores,
            self._moments.mean,
            self._moments.std,
            middle=self.middle,
            slope=self.slope,
            low=self.low,
            high=self.high,
            z_max=self.z_max,
        )

    def state_dict(self) -> dict[str, Any]:
        return self._moments.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moments.load_state_dict(state)


@dataclass
class DynamicQuantileClip(_RewardWidth):
    """A wide range for the best completions of the step, a narrow one for the worst, the middle for the others.

    Without ``decay`` by mid-ranks over the step, all processes together: u > 1 - top is wide, u < bottom narrow, so
    that ties stand together.  With rewards of 0 and 1 and between 20% and 80% success no row is in either tail, and
    the rule is inactive.  With ``decay`` by moving averages of the two quantiles: strictly above or below them.

    Source: the other design of the "dynamic advantage" interview note (top 20% 0.3, bottom 20% 0.1, at most 0.4); the
    middle is not stated there, 0.2 is PPO's.
    """

    top: float = 0.2
    """Share of the step's completions with the wide range."""
    bottom: float = 0.2
    """Share with the narrow range."""
    top_width: float = 0.3
    """Epsilon of the best."""
    bottom_width: float = 0.1
    """Epsilon of the worst."""
    middle_width: float = 0.2
    """Epsilon of the others."""
    high: float = 0.4
    """Largest epsilon."""
    decay: float | None = None
    """m of the moving quantiles; null: ranks within the step."""
    _thresholds: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for share in ("top", "bottom"):
            require(0 <= getattr(self, share) <= 0.5, self, share, "must lie in [0, 0.5]")
        require(0 < self.high < 1, self, "high", "must lie in (0, 1)")
        for width in ("top_width", "bottom_width", "middle_width"):
            require(0 <= getattr(self, width) <= self.high, self, width, f"must lie in [0, high={self.high:g}]")
        require(self.decay is None or 0 <= self.decay < 1, self, "decay", "must lie in [0, 1)")

    def widths(self, scores: Tensor, valid: Tensor) -> Tensor:
        if self.decay is None:
            place, edges = mid_ranks(scores, all_rows(scores[valid])), (self.bottom, 1 - self.top)
        else:
            place, edges = scores, self._moved(scores, valid)
        return quantile_width(place, *edges, bottom=self.bottom_width, middle=self.middle_width, top=self.top_width)

    def _moved(self, scores: Tensor, valid: Tensor) -> tuple[float, float]:
        assert self.decay is not None
        now = [float(quantile(scores, valid, q)) for q in (self.bottom, 1 - self.top)]
        if now[0] < float("inf"):
            old = self._thresholds or now
            self._thresholds = [self.decay * a + (1 - self.decay) * b for a, b in zip(old, now, strict=True)]
        return (self._thresholds[0], self._thresholds[1]) if self._thresholds else (float("-inf"), float("inf"))

    def state_dict(self) -> dict[str, Any]:
        return {"thresholds": list(self._thresholds)} if self._thresholds else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._thresholds = list(state["thresholds"])
