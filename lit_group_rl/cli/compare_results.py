"""What came out of each run and of each side, read from run folders."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lit_group_rl.cli.compare_arms import METRICS, Arm
from lit_group_rl.cli.compare_statistics import (
    COMPLETIONS,
    Curve,
    Difference,
    area,
    at,
    curve,
    finite,
    mean_of,
    paired,
    reaches,
    until,
)

ACCURACY = "held-out accuracy"
TAGS = {
    ACCURACY: "eval/heldout/accuracy",
    "entropy": "policy/entropy",
    "live groups": "group/zero_std_frac",
    "length": "length/mean",
}
"""What is drawn -> the tag it is logged under; live groups are those that are not dead."""
LATE = 0.1
"""Entropy, live groups and length at the end are means over this last share of the budget."""


@dataclass(frozen=True)
class RunResult:
    """One run, read at the budget."""

    seed: int
    folder: Path
    curves: Mapping[str, Curve]
    start: float
    accuracy: float
    area: float
    reached: float | None
    """Completions until the target accuracy."""
    entropy: float
    live: float
    length: float
    finite: bool
    steps: int
    completions: float
    tokens: float
    seconds_per_step: float
    seconds: float
    memory: float


@dataclass
class Side:
    """An arm with its results."""

    arm: Arm
    runs: dict[int, RunResult] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the arm."""
        return self.arm.name

    def values(self, quantity: str) -> list[float]:
        """A number of every run, what is unknown left out."""
        found = (getattr(run, quantity) for run in self.runs.values())
        return [v for v in found if v is not None and math.isfinite(v)]

    def by_seed(self, quantity: str) -> dict[int, float]:
        """Seed -> a number that is known."""
        found = {seed: getattr(run, quantity) for seed, run in self.runs.items()}
        return {seed: v for seed, v in found.items() if v is not None and math.isfinite(v)}


@dataclass(frozen=True)
class Comparison:
    """All that a report says."""

    sides: Sequence[Side]
    budget: float
    """Completions at which every run is read."""
    target: float
    """Accuracy whose first reaching is timed."""
    notes: Sequence[str] = ()

    @property
    def seeds(self) -> list[int]:
        """Of all sides."""
        return sorted({seed for side in self.sides for seed in (*side.runs, *side.failed)})

    def pairs(self) -> list[tuple[Side, Side]]:
        """(new, old): every side against the first, and every two of three or fewer."""
        first, *others = self.sides
        found = [(side, first) for side in others]
        return [*found, (others[1], others[0])] if len(others) == 2 else found

    def difference(self, new: Side, old: Side, quantity: str = "accuracy") -> Difference:
        """Over the seeds that both have."""
        return paired(new.by_seed(quantity), old.by_seed(quantity))


def read(folder: Path) -> dict[int, dict[str, float]]:
    """What a run logged, by RL step."""
    from lit_group_rl.callbacks.metrics_file import read_metrics

    return read_metrics(folder / METRICS)


def end_of(rows: Mapping[int, Mapping[str, float]]) -> float:
    """Completions of a whole run."""
    return max((row[COMPLETIONS] for row in rows.values() if COMPLETIONS in row), default=0.0)


def result(seed: int, folder: Path, budget: float, target: float) -> RunResult:
    """A run read at ``budget`` completions, costs of the whole run."""
    rows = read(folder)
    curves = {name: curve(rows, tag) for name, tag in TAGS.items()}
    curves["live groups"] = [(x, 1 - y) for x, y in curves["live groups"]]
    held = curves[ACCURACY]
    late = budget * (1 - LATE)
    steps = [row for step, row in rows.items() if step > 0]
    times = [row["time/step"] for row in steps if "time/step" in row]
    return RunResult(
        seed=seed,
        folder=folder,
        curves=curves,
        start=held[0][1] if held else math.nan,
        accuracy=at(held, budget),
        area=area(held, budget),
        reached=reaches(until(held, budget), target),
        entropy=mean_of(curves["entropy"], late, budget),
        live=mean_of(curves["live groups"], 0, budget),
        length=mean_of(curves["length"], late, budget),
        finite=finite(rows.values()),
        steps=max(rows, default=0),
        completions=end_of(rows),
        tokens=max((row["progress/tokens"] for row in steps if "progress/tokens" in row), default=math.nan),
        seconds_per_step=statistics.fmean(times) if times else math.nan,
        seconds=sum(times) + sum(row.get("time/eval", 0.0) for row in rows.values()),
        memory=max((row["perf/peak_mem_gb"] for row in steps if "perf/peak_mem_gb" in row), default=math.nan),
    )
