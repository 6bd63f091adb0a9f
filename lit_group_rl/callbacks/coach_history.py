"""What the coach looks at: the logged numbers over RL steps, and the settings that its advice depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, pvariance

WINDOW = 20
"""RL steps that a rule looks back over, where it does not say otherwise."""
LONG = 50
"""RL steps over which a reward that does not move counts as flat."""
HELDOUT = "eval/heldout/accuracy"
VARIANCE = "reward_variance/"
READ = (
    "reward/mean", "reward/accuracy", "reward/group_std", "reward/answer_missed_frac", "group/size",
    "group/zero_std_frac", "group/all_min_frac", "group/all_max_frac", "length/mean", "length/p95",
    "length/truncated_frac", "policy/entropy", "policy/kl_ref", "policy/log_ratio_abs_max", "policy/clip_frac",
    "optim/grad_norm", "critic/explained_variance", "time/step", "time/reward", HELDOUT,
)  # fmt: skip
"""Tags that some rule reads, beside those that begin with ``VARIANCE``."""


@dataclass(frozen=True)
class Facts:
    """What the advice depends on: settings of the run, None or empty where they are not known."""

    max_new_tokens: int | None = None
    group_size: int | None = None
    level: int | None = None
    """Of the embedded tasks."""
    learning_rate: float | None = None
    lora: bool = False
    updates: int = 1
    """Optimizer steps per rollout."""
    temperature: float | None = None
    advantage: str = ""
    aggregator: str = ""
    sequence_ratio: bool = False
    """One ratio per completion: its clip is narrow, and stops whole completions by design."""
    clip_high: float | None = None
    """Upper clip range, where the clip policy has one."""
    entropy_terms: tuple[str, ...] = ()
    """Names of the entropy terms among the auxiliary losses."""
    kl_terms: tuple[str, ...] = ()
    workers: dict[str, int] = field(default_factory=dict)
    """Reward -> processes it uses, where that is an option; 0: none yet, as it is called for the whole batch."""
    extracts: tuple[str, ...] = ()
    """Rewards with an option for where the answer stands, as 'exact.extract'."""


class History:
    """The numbers that rules read, tag by tag, in order of RL steps."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[int, float]]] = {}
        self._totals: dict[str, float] = {}

    def add(self, step: int, metrics: dict[str, float]) -> None:
        """Append the numbers of a finished RL step; NaN and infinity are left out."""
        for tag, value in metrics.items():
            if (tag in READ or tag.startswith(VARIANCE)) and abs(value) < float("inf"):
                self._values.setdefault(tag, []).append((step, float(value)))
                self._totals[tag] = self._totals.get(tag, 0.0) + float(value)

    def points(self, tag: str) -> list[tuple[int, float]]:
        """(RL step, value) of a tag."""
        return self._values.get(tag, [])

    def first(self, tag: str, n: int = 1) -> list[float]:
        """The first ``n`` values, or as many as there are."""
        return [v for _, v in self.points(tag)[:n]]

    def total(self, tag: str) -> float:
        """Sum of all values since the start."""
        return self._totals.get(tag, 0.0)

    def recent(self, tag: str, n: int = WINDOW) -> list[float]:
        """The last ``n`` values, or as many as there are."""
        return [v for _, v in self.points(tag)[-n:]]

    def last(self, tag: str, n: int = WINDOW) -> list[float] | None:
        """The last ``n`` values; None while there are fewer."""
        found = self.recent(tag, n)
        return found if len(found) == n else None

    def mean(self, tag: str, n: int = WINDOW) -> float | None:
        """Mean of the last ``n`` values; None while there are fewer."""
        values = self.last(tag, n)
        return None if values is None else fmean(values)

    def tags(self, start: str) -> list[str]:
        """Tags with this beginning."""
        return [tag for tag in self._values if tag.startswith(start)]


def rises(before: list[float], after: list[float]) -> bool:
    """Whether the second mean lies above the first by more than two standard errors of the difference."""
    error = (pvariance(before) / len(before) + pvariance(after) / len(after)) ** 0.5
    return fmean(after) - fmean(before) > 2 * error


def reward_is_flat(history: History) -> bool:
    """Over the last ``LONG`` RL steps the second half is neither higher nor lower than the first."""
    values = history.last("reward/mean", LONG)
    if values is None:
        return False
    half = LONG // 2
    return not (rises(values[:half], values[half:]) or rises(values[half:], values[:half]))
