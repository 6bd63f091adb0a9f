"""Call the rewards of a recipe, and survive what they do."""

from __future__ import annotations

import dataclasses
import logging
import math
import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.functional.groups import group_std
from lit_group_rl.functional.rng import seeded
from lit_group_rl.pulse import PULSE
from lit_group_rl.rewards._scorers import WrongResult, as_floats
from lit_group_rl.rewards.base import Reward, ScorerTimeout
from lit_group_rl.rewards.early import EarlyScores
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import BASELINE, RecipeError, RolloutBatch, Sample

log = logging.getLogger(__name__)

BROKEN_STEPS = 3
"""RL steps in a row with more than half of a reward's calls failing end the run."""


class RewardBroken(RuntimeError):
    """A reward fails on most completions, so the run would learn from noise; or its recipe says to stop."""


class RewardMonitor:
    """Counts the failures of each reward over RL steps, and remembers which kinds have been shown."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._shown: set[tuple[str, str]] = set()

    def first(self, name: str, kind: str) -> bool:
        """True the first time this kind of trouble comes from this reward."""
        new = (name, kind) not in self._shown
        self._shown.add((name, kind))
        return new

    def observe(self, name: str, step: int, failed: int, total: int, why: str) -> None:
        """Count the calls of one RL step, which may come in parts; raises RewardBroken on the third bad step."""
        last, before_failed, before_total, streak = self._counts.get(name, [step, 0, 0, 0])
        if last == step:
            failed, total = failed + before_failed, total + before_total
        else:
            streak = streak + 1 if 2 * before_failed > before_total else 0
        self._counts[name] = [step, failed, total, streak]
        if 2 * failed > total and streak + 1 >= BROKEN_STEPS:
            raise RewardBroken(
                f"model.rewards.{name}: failed on {failed} of {total} completions, and on more than half for "
                f"{BROKEN_STEPS} steps in a row. Last error: {why}. Fix the reward; the run can be resumed"
            )

    def state_dict(self) -> dict[str, list[int]]:
        """Per reward: last step, its failures and calls, bad steps in a row before it."""
        return {name: list(counts) for name, counts in self._counts.items()}

    def load_state_dict(self, state: dict[str, list[int]]) -> None:
        """Take back what ``state_dict`` gave."""
        self._counts = {name: [int(n) for n in counts] for name, counts in state.items()}


def total_score(rewards: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """sum(weight * reward) over the rewards that scored the row; NaN where every one with a weight abstained.

    Each [B], NaN = abstained -> [B] float64.
    """
    first = next(iter(rewards.values()))
    total = torch.zeros_like(first, dtype=torch.float64)
    scored = torch.zeros_like(first, dtype=torch.bool)
    for name, values in rewards.items():
        if weights[name] != 0:
            total = total + weights[name] * values.double().nan_to_num(nan=0.0)
            scored |= ~values.isnan()
    return torch.where(scored, total, torch.nan)


def score_rewards(
    rewards: Mapping[str, Reward],
    batch: RolloutBatch,
    clock: Clock,
    seed: int,
    monitor: RewardMonitor,
    early: EarlyScores | None = None,
) -> None:
    """Fill ``rewards``, ``scores``, ``solved`` and the metrics of the batch; rows that nothing scored leave its mask.

    A completion on which a reward raises or hangs is settled by its ``on_error`` and ``on_timeout``; the others keep
    their scores.  ``early`` holds what was scored while the batch was drawn.  Raises RecipeError for a reward that
    returns no list of numbers, RewardBroken when one keeps failing.
    """
    drawn = batch.row_role.cpu() != BASELINE
    calls = failures = timeouts = 0
    for name, reward in rewards.items():
        PULSE.at("reward", name)
        call = _Call(name, reward, batch, monitor, early.take(name, batch.samples) if early is not None else {})
        with seeded("reward", seed, clock.step, name):
            values = call.run()
        batch.rewards[name] = values.to(batch.mask.device)
        calls, failures = calls + len(batch), failures + call.failed
        timeouts += call.hung
        mean = drawn & ~values.isnan()
        batch.metrics.mean(f"reward_part/{name}", values[mean].sum(), mean.sum())
        if len(batch):
            monitor.observe(name, clock.step, call.failed + call.hung, len(batch), call.why)
    weights = {name: clock.at(r.weight) for name, r in rewards.items()}
    batch.scores = total_score(batch.rewards, weights)
    _log_variances(batch, {name: w for name, w in weights.items() if w != 0}, drawn)
    main, threshold = next((batch.rewards[name], r.solved_at) for name, r in rewards.items())
    batch.solved = main >= threshold
    scored = ~batch.scores.isnan()
    batch.mask = batch.mask & scored[:, None]

    count = drawn & scored.cpu()
    judged = drawn & ~main.isnan().cpu()
    batch.metrics.mean("reward/mean", batch.scores.cpu()[count].sum(), count.sum())
    batch.metrics.mean("reward/accuracy", batch.solved.cpu()[judged].sum(), judged.sum())
    batch.metrics.mean("reward/abstain_frac", (drawn & ~scored.cpu()).sum(), drawn.sum())
    batch.metrics.mean("reward/error_frac", failures, calls)
    batch.metrics.mean("reward/timeout_frac", timeouts, calls)


def _log_variances(batch: RolloutBatch, weights: Mapping[str, float], drawn: Tensor) -> None:
    """How much of the spread inside groups each reward brings; of a single one that is all."""
    for name, weight in weights.items() if len(weights) > 1 else ():
        values = batch.rewards[name].cpu()
        valid = drawn & ~values.isnan()
        variance = (weight * group_std(values.nan_to_num(), batch.group_ids.cpu(), valid, ddof=0)) ** 2
        batch.metrics.mean(f"reward_variance/{name}", variance[valid].sum(), valid.sum())


class _Call:
    """One reward over one batch."""

    def __init__(
        self, name: str, reward: Reward, batch: RolloutBatch, monitor: RewardMonitor, early: dict[int, Any]
    ) -> None:
        self.name, self.reward, self.batch, self.monitor = name, reward, batch, monitor
        self.early = early
        """Row -> what the reward gave before it was asked for the batch."""
        self.failed = self.hung = 0
        self.lowest: list[int] = []
        self.why = ""

    def run(self) -> Tensor:
        """Scores [B] float64 on the CPU, NaN = abstained."""
        if not len(self.batch):
            return torch.zeros(0, dtype=torch.float64)
        values = self._try(torch.arange(len(self.batch)), last=False)
        if values is None:
            values = self._apart()
        low = self.reward.range[0] if self.reward.range else min([0.0, *(v for v in values if v == v)])
        for i in self.lowest:
            values[i] = low
        return torch.tensor(self._clamped(values), dtype=torch.float64)

    def _try(self, rows: Tensor, *, last: bool) -> list[float] | None:
        """Scores of the rows; where the reward raises, None, or at the last try what becomes of them."""
        try:
            return self._scores(rows)
        except RecipeError as error:
            place = f"model.rewards.{self.name}"
            raise error if str(error).startswith("model.") else RecipeError(f"{place}: {error}") from error
        except RewardBroken:
            raise
        except Exception as error:
            return [self._settled(error, i) for i in rows.tolist()] if last else None

    def _apart(self) -> list[float]:
        """Again in the smallest parts the reward can score: single completions, or groups if it compares them."""
        if type(self.reward).score_batch is Reward.score_batch:
            parts = [torch.tensor([i]) for i in range(len(self.batch))]
        else:
            ids = self.batch.group_ids.cpu()
            parts = [(ids == g).nonzero().flatten() for g in ids.unique()]
        values = [math.nan] * len(self.batch)
        for part in parts:
            scores = self._try(part, last=True)
            assert scores is not None
            for i, score in zip(part.tolist(), scores, strict=True):
                values[i] = score
        return values

    def _scores(self, rows: Tensor) -> list[float]:
        if type(self.reward).score_batch is Reward.score_batch:
            wanted = [i for i in rows.tolist() if i not in self.early]
            # a reward may change what it is given; the batch must not notice
            result: Any = self.reward.score([self.batch.samples[i].copied() for i in wanted]) if wanted else []
            if self.early:
                as_numbers(result, len(wanted), self.name)
                late = iter(result)
                result = [self.early[i] if i in self.early else next(late) for i in rows.tolist()]
        else:
            part = self.batch if len(rows) == len(self.batch) else self.batch.rows(rows.to(self.batch.mask.device))
            result = self.reward.score_batch(dataclasses.replace(part, samples=[s.copied() for s in part.samples]))
        values = as_numbers(result, len(rows), self.name)
        return [
            self._settled(given, i) if isinstance(given, Exception) else self._finite(value, self.batch.samples[i])
            for i, given, value in zip(rows.tolist(), result, values, strict=True)
        ]

    def _settled(self, error: Exception, row: int) -> float:
        """Count and report a failure; what the row scores for now: NaN, also where it will get the lowest score."""
        hung = isinstance(error, ScorerTimeout)
        option = "on_timeout" if hung else "on_error"
        outcome = getattr(self.reward, option)
        self.hung, self.failed = self.hung + hung, self.failed + (not hung)
        self._report(error, self.batch.samples[row], outcome)
        if outcome == "stop":
            raise RewardBroken(
                f"model.rewards.{self.name}: {self.why}, for {_shown(self.batch.samples[row])}. "
                f"Mend the reward, or set {option} to abstain or minimum; the run can be resumed"
            )
        if outcome == "minimum":
            self.lowest.append(row)
        return math.nan

    def _finite(self, value: float, sample: Sample) -> float:
        if not math.isinf(value):
            return value
        if self.monitor.first(self.name, "inf"):
            log.warning("reward %s gave %s and counts as abstained; first for %s", self.name, value, _shown(sample))
        return math.nan

    def _clamped(self, values: list[float]) -> list[float]:
        if self.reward.range is None:
            return values
        low, high = self.reward.range
        outside = [i for i, v in enumerate(values) if v < low or v > high]
        if outside and self.monitor.first(self.name, "range"):
            log.warning(
                "reward %s gave %s, outside its range [%g, %g], and is clamped; first for %s",
                self.name,
                values[outside[0]],
                low,
                high,
                _shown(self.batch.samples[outside[0]]),
            )
        return [min(max(v, low), high) if v == v else v for v in values]

    def _report(self, error: Exception, sample: Sample, outcome: str) -> None:
        self.why = f"{type(error).__name__}: {error}"
        if self.monitor.first(self.name, getattr(error, "kind", type(error).__name__)):
            trace = "".join(traceback.format_exception(error))
            log.error("reward %s failed (%s) for %s\n%s", self.name, outcome, _shown(sample), trace)


def as_numbers(result: object, expected: int, name: str) -> list[float]:
    """What a reward returned as floats, NaN for None or an exception; RecipeError says what else it is.

    Takes lists, tuples, one-dimensional arrays and tensors of None, bool, int, float, or 0-d arrays and tensors.
    """
    try:
        return as_floats(result, expected)
    except WrongResult as error:
        raise RecipeError(f"model.rewards.{name}: {error}") from None


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _shown(sample: Sample) -> str:
    completion = _short(sample.completion, 300)
    return f"prompt {_short(sample.prompt, 300)}, completion {completion}, answer {_short(sample.answer)}"
