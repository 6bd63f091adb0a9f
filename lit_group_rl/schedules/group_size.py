"""Group size and KL coefficient that follow how the training goes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

from lit_group_rl.schedules.base import Clock, Schedule, require, require_number
from lit_group_rl.types import Problem, Recipe

Verdict = Literal["oscillates", "slow", "fine"]


def oscillation(grad_norms: Sequence[float]) -> float:
    """std / mean of the gradient norms, std with n - 1; 0 if none moved.  The loss itself is near 0 by construction."""
    mean = fmean(grad_norms)
    return stdev(grad_norms) / mean if mean > 0 else 0.0


def progress(rewards: Sequence[float]) -> float:
    """Mean of the second half minus mean of the first half; an odd one in the middle counts in the second."""
    half = len(rewards) // 2
    return fmean(rewards[half:]) - fmean(rewards[:half])


def verdict(osc: float, prog: float, *, osc_high: float, osc_low: float, min_progress: float) -> Verdict:
    """'oscillates' above osc_high; else 'slow' if the progress is below min_progress and osc below osc_low."""
    if osc > osc_high:
        return "oscillates"
    return "slow" if prog < min_progress and osc < osc_low else "fine"


@dataclass
class _Watch(Schedule):
    """Judges gradient norm and reward every ``window`` RL steps; what follows from it is the subclass's business."""

    window: int = field(default=4, kw_only=True)
    """RL steps between two decisions; each is judged once."""
    osc_high: float = field(default=0.5, kw_only=True)
    """Above this, std / mean of the gradient norm counts as oscillation."""
    osc_low: float = field(default=0.1, kw_only=True)
    """Below this it counts as calm."""
    min_progress: float = field(default=0.01, kw_only=True)
    """Calm and a smaller gain in reward from the first to the second half of the window counts as slow."""
    _grad_norms: list[float] = field(default_factory=list, init=False, repr=False, compare=False)
    _rewards: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.window >= 2, self, "window", "must be at least 2")
        require(0 <= self.osc_low <= self.osc_high, self, "osc_low", f"must lie in [0, osc_high={self.osc_high:g}]")
        require_number(self, "min_progress")

    def observe(self, metrics: dict[str, float]) -> None:
        pair = metrics.get("optim/grad_norm", math.nan), metrics.get("reward/mean", math.nan)
        if not all(map(math.isfinite, pair)):  # a step without a signal says nothing of either
            return
        self._grad_norms.append(pair[0])
        self._rewards.append(pair[1])
        if len(self._rewards) == self.window:
            self.decide(
                verdict(
                    oscillation(self._grad_norms),
                    progress(self._rewards),
                    osc_high=self.osc_high,
                    osc_low=self.osc_low,
                    min_progress=self.min_progress,
                )
            )
            self._grad_norms, self._rewards = [], []

    def decide(self, seen: Verdict) -> None:
        """Draw the consequence."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"grad_norms": list(self._grad_norms), "rewards": list(self._rewards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._grad_norms, self._rewards = list(state["grad_norms"]), list(state["rewards"])

    def _rule(self) -> tuple[float, ...]:
        return self.window, self.osc_high, self.osc_low, self.min_progress


@dataclass
class GroupSizeLadder(_Watch):
    """Completions per prompt: a rung up when the training oscillates, a rung down when it is calm and slow.

    Source: tuning advice of an interview note (8 to begin with; 12 to 16 if it oscillates; 4 to 6, with more KL, if it
    is slow), made measurable here.
    """

    ladder: list[int] = field(default_factory=lambda: [4, 6, 8, 12, 16])
    """Group sizes in rising order."""
    start: int = 8
    """Size at the first RL step: one of the ladder."""
    _rung: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = self.ladder and self.ladder[0] >= 2 and self.ladder == sorted(set(self.ladder))
        require(bool(rising), self, "ladder", "must rise and begin with at least 2")
        require(self.start in self.ladder, self, "start", f"must be one of {self.ladder}")
        self._rung = self.ladder.index(self.start)

    def value(self, clock: Clock) -> float:
        return self.ladder[self._rung]

    def decide(self, seen: Verdict) -> None:
        step = {"oscillates": 1, "slow": -1, "fine": 0}[seen]
        self._rung = min(max(self._rung + step, 0), len(self.ladder) - 1)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"rung": self._rung}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._rung = min(state["rung"], len(self.ladder) - 1)


@dataclass
class RaiseWhenSlow(_Watch):
    """A coefficient, the KL's, that grows by ``factor`` each time the training is found calm and slow.

    It judges the same numbers by the same rule as ``GroupSizeLadder``, so that both act in the same RL step.
    """

    start: float = 0.04
    """Coefficient at the first RL step."""
    factor: float = 1.5
    """What it is multiplied by."""
    high: float = 0.2
    """Largest coefficient."""
    _coef: float = field(default=0.0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number(self, "start", low=0.0)
        require_number(self, "high", low=self.start)
        require(self.factor >= 1, self, "factor", "must be at least 1")
        self._coef = self.start

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        for path, part in recipe.components():
            if isinstance(part, GroupSizeLadder) and part._rule() != self._rule():
                yield Problem(
                    f"model.{path}",
                    "decides by another window or other thresholds than the coefficient that is to follow it",
                    "Set window, osc_high, osc_low and min_progress of both to the same numbers",
                    warning=True,
                )

    def value(self, clock: Clock) -> float:
        return self._coef

    def decide(self, seen: Verdict) -> None:
        if seen == "slow":
            self._coef = min(self._coef * self.factor, self.high)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"coef": self._coef}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._coef = state["coef"]
