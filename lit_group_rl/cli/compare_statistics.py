"""The numbers of a comparison: curves over completions, means over seeds, paired differences.  Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Curve = list[tuple[float, float]]
"""(completions sampled so far, value), in order of completions."""

COMPLETIONS = "progress/completions"
WATCHED = ("loss/total", "optim/grad_norm")


def curve(rows: Mapping[int, Mapping[str, float]], tag: str) -> Curve:
    """A metric over completions, of the numbers logged by RL step; what is not finite is left out."""
    points = []
    for step in sorted(rows):
        row = rows[step]
        done = row.get(COMPLETIONS, 0.0 if step == 0 else math.nan)
        if math.isfinite(done) and math.isfinite(row.get(tag, math.nan)):
            points.append((done, row[tag]))
    return points


def at(points: Curve, completions: float) -> float:
    """The value at a number of completions, linear between points, flat beyond the ends; NaN without points."""
    if not points:
        return math.nan
    if completions <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if completions <= x1:
            return y0 + (y1 - y0) * (completions - x0) / (x1 - x0)
    return points[-1][1]


def until(points: Curve, completions: float) -> Curve:
    """The curve up to a number of completions, its value there added."""
    return [p for p in points if p[0] < completions] + ([(completions, at(points, completions))] if points else [])


def area(points: Curve, completions: float) -> float:
    """Area under the curve from its first point to ``completions``, over that width: the mean value on the way.

    Trapezoids.  A curve that ends earlier stays at its last value; NaN without points, or with no width.
    """
    part = until(points, completions)
    width = part[-1][0] - part[0][0] if part else 0.0
    if width <= 0:
        return math.nan
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(part)) / width


def reaches(points: Curve, value: float) -> float | None:
    """Completions at which the curve first reaches ``value``, linear between points; None if it never does."""
    if points and points[0][1] >= value:
        return points[0][0]
    for (x0, y0), (x1, y1) in pairwise(points):
        if y1 >= value:
            return x0 + (x1 - x0) * (value - y0) / (y1 - y0)
    return None


def mean_of(points: Curve, first: float, last: float) -> float:
    """Mean of the points between two numbers of completions; NaN if there is none."""
    values = [y for x, y in points if first <= x <= last]
    return statistics.fmean(values) if values else math.nan


def smooth(points: Curve, window: int) -> Curve:
    """Centred moving average over an odd number of points; narrower, and still centred, near the ends."""
    out = []
    for i, (x, _) in enumerate(points):
        half = min(window // 2, i, len(points) - 1 - i)
        out.append((x, statistics.fmean(y for _, y in points[i - half : i + half + 1])))
    return out


def mean_curve(curves: Sequence[Curve], points: int = 200) -> Curve:
    """Mean of curves on a common grid, from where all have begun to where the first ends."""
    curves = [c for c in curves if c]
    if not curves:
        return []
    first, last = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    if last <= first:
        return [(first, statistics.fmean(at(c, first) for c in curves))]
    grid = [first + (last - first) * i / points for i in range(points + 1)]
    return [(x, statistics.fmean(at(c, x) for c in curves)) for x in grid]


def finite(rows: Iterable[Mapping[str, float]]) -> bool:
    """Whether loss and gradient of every update were numbers."""
    return all(math.isfinite(row[tag]) for row in rows for tag in WATCHED if tag in row)


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation with n - 1; None of fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


def t_quantile(df: int, confidence: float = 0.95) -> float:
    """The t with P(-t < T < t) = confidence for Student's distribution with ``df`` degrees of freedom.

    Bisection of the closed form for whole df, with theta = arctan(t / sqrt(df)):
        odd    2/pi (theta + sin theta (cos theta + 2/3 cos^3 theta + ... up to cos^(df-2) theta))
        even   sin theta (1 + 1/2 cos^2 theta + (1 3)/(2 4) cos^4 theta + ... up to cos^(df-2) theta)
    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if df < 1:
        raise ValueError(f"t_quantile: df must be at least 1, got {df}")

    def inside(t: float) -> float:
        theta = math.atan(t / math.sqrt(df))
        cos = math.cos(theta)
        term = cos if df % 2 else 1.0
        total = term if df > 1 else 0.0
        for k in range(3 if df % 2 else 2, df - 1, 2):
            term *= cos * cos * (k - 1) / k
            total += term
        part = math.sin(theta) * total
        return 2 / math.pi * (theta + part) if df % 2 else part

    low, high = 0.0, 1.0
    while inside(high) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < confidence else (low, middle)
    return high


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, with the interval that holds the true one in 95 of 100 such comparisons."""

    seeds: int
    mean: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What may be said."""
        if self.seeds == 0:
            return "no common seed"
        if self.seeds == 1:
            return "one seed: no interval"
        if self.low <= 0 <= self.high:
            return "no difference seen"
        return "likely better" if self.mean > 0 else "likely worse"


def paired(new: Mapping[int, float], old: Mapping[int, float]) -> Difference:
    """``new`` minus ``old`` over the seeds that both have.

        mean(d) -+ t(n - 1) sd(d) / sqrt(n)

    NaN bounds with fewer than two seeds.
    """
    differences = [new[seed] - old[seed] for seed in new if seed in old]
    n = len(differences)
    if n == 0:
        return Difference(0, math.nan, math.nan, math.nan)
    mean = statistics.fmean(differences)
    if n == 1:
        return Difference(1, mean, math.nan, math.nan)
    half = t_quantile(n - 1) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(n, mean, mean - half, mean + half)
