"""What is measured in a step: counters, times, and the statistics of rollout and update.  Tags: ``tags.py``."""

from __future__ import annotations

import resource
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.linalg import vector_norm

from lit_group_rl.functional.collectives import all_rows, all_sum, world_size
from lit_group_rl.functional.groups import group_extreme, group_index, group_is_tied, group_size, group_std
from lit_group_rl.functional.masked import masked_std
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.schedules.base import Schedule
from lit_group_rl.types import POLICY, Bounds, LossContext, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.callbacks.base import Guard
    from lit_group_rl.engine import Engine

SAMPLED = 1 << 16
"""Of a tensor with more weights about this many, evenly spread, tell how far a step moves it."""

COUNTERS = ("prompts", "completions", "tokens", "updates", "skipped")


class Recorder:
    """Cumulative counters (in the checkpoint) and the times of the present step (not)."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(COUNTERS, 0)
        self._step = dict.fromkeys(COUNTERS, 0)
        self._times: dict[str, float] = {}
        self._before: list[torch.Tensor] = []
        self._guard: Guard | None = None

    def start(self, module: Engine) -> None:
        """Remember the weights, to tell how far a step moves them."""
        self._remember(module)

    def _remember(self, module: Engine) -> None:
        self._before = [_sample(p).clone() for p in module.policy.parameters() if p.requires_grad]

    def count(self, **amounts: int) -> None:
        """Add to this process's counters of the step."""
        for name, amount in amounts.items():
            self._step[name] += amount

    def add_time(self, tag: str, seconds: float) -> None:
        """Add to a stage's seconds in this step."""
        self._times[tag] = self._times.get(tag, 0.0) + seconds

    def take_time(self, tag: str) -> dict[str, float]:
        """A stage's seconds, as a metric of their own."""
        return {tag: self._times.pop(tag)}

    def finish(self, bag: MetricBag, module: Engine) -> dict[str, float]:
        """Close the step: the bag's numbers over processes, counters, times, schedules."""
        amounts = torch.tensor([float(self._step[n]) for n in COUNTERS], dtype=torch.float64, device=module.device)
        amounts[3:] /= world_size()  # every process makes the same updates
        step = dict(zip(COUNTERS, (int(x) for x in all_sum(amounts).tolist()), strict=True))
        for name in COUNTERS:
            self.totals[name] += step[name]
        metrics = bag.reduce()
        metrics |= {f"progress/{n}": float(self.totals[n]) for n in ("prompts", "completions", "tokens", "updates")}
        metrics["optim/skipped_total"] = float(self.totals["skipped"])
        metrics |= self._times
        seconds = max(self._times.get("time/step", 0.0), 1e-9)
        metrics["perf/tokens_per_s"] = step["tokens"] / seconds
        metrics["perf/samples_per_s"] = step["completions"] / seconds
        metrics["perf/peak_mem_gb"] = peak_memory_gb()
        if self._before:
            now = [p for p in module.policy.parameters() if p.requires_grad]
            moved = size = 0.0
            for p, q in zip(now, self._before, strict=True):
                stands_for = _mine(p).numel() / max(1, len(q))
                moved += stands_for * float(vector_norm(_sample(p) - q)) ** 2
                size += stands_for * float(vector_norm(q)) ** 2
            if any(hasattr(p, "to_local") for p in now):
                moved, size = all_sum(torch.tensor([moved, size], dtype=torch.float64, device=module.device)).tolist()
            metrics["optim/update_to_weight"] = (moved / max(size, 1e-30)) ** 0.5
            self._remember(module)
        clock = module.clock
        for path, part in module.describe(1).components():
            if isinstance(part, Schedule):
                metrics[f"schedule/{path}"] = part.value(clock)
        self._step = dict.fromkeys(COUNTERS, 0)
        self._times = {}
        return metrics

    def emit(self, metrics: dict[str, float], module: Engine) -> None:
        """To every logger and callback, at the number of finished RL steps."""
        from lit_group_rl.callbacks.base import Guard, RunCallback

        self._guard = self._guard or Guard()
        trainer: Any = module.trainer
        for logger in trainer.loggers:
            self._guard(type(logger).__name__, partial(logger.log_metrics, metrics, step=module.rl_step))
        for callback in trainer.callbacks:
            if isinstance(callback, RunCallback):
                callback.on_metrics(trainer, module, module.rl_step, metrics)

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return dict(self.totals)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counters back; what a broken-off step has counted is forgotten."""
        self.totals = {n: int(state[n]) for n in COUNTERS}
        self._step, self._times = dict.fromkeys(COUNTERS, 0), {}


def _mine(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a sharded parameter that this process holds."""
    value = parameter.detach()
    return value.to_local() if hasattr(value, "to_local") else value


def _sample(parameter: torch.Tensor) -> torch.Tensor:
    """Evenly spread weights of this process's part, all of them in a small tensor."""
    flat = _mine(parameter).flatten()
    return flat[:: max(1, len(flat) // SAMPLED)]


def peak_memory_gb() -> float:
    """Largest memory so far: of the accelerator if there is one, else resident memory of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def log_rollout(batch: RolloutBatch, bag: MetricBag) -> None:
    """Scores, groups, lengths and entropy of everything that was sampled, before the filter."""
    assert batch.scores is not None
    assert batch.solved is not None
    bag.merge(batch.metrics)
    lengths, counted = batch.own_lengths.double(), batch.counted
    bag.mean("length/mean", lengths.sum(), len(lengths))
    bag.max("length/max", lengths.max())
    bag.quantile("length/p95", lengths, 0.95)
    bag.mean("length/truncated_frac", batch.truncated.double().sum(), len(lengths))
    bag.mean("length/empty_frac", ((lengths <= 1) & ~batch.truncated).double().sum(), len(lengths))
    for name, rows in (("correct", batch.solved & counted), ("wrong", ~batch.solved & counted)):
        bag.mean(f"length/{name}", (lengths * rows).sum(), rows.sum())
    if batch.entropy is not None:
        bag.masked("policy/entropy", batch.entropy, batch.own_mask)
    unsolved = [s for s, right in zip(batch.samples, batch.solved.tolist(), strict=True) if s.answer and not right]
    missed = sum(stands_in(str(s.answer).strip(), s.completion) for s in unsolved)
    bag.mean("reward/answer_missed_frac", missed, len(unsolved))
    log_groups(batch, bag)


def stands_in(answer: str, text: str) -> bool:
    """Whether ``answer`` stands in ``text`` as words of its own: 7 does in 'it is 7.', not in '177' nor in '7.5'."""
    at = text.find(answer) if answer else -1
    while at >= 0:
        before, after = text[max(0, at - 2) : at], text[at + len(answer) : at + len(answer) + 2]
        if not (_goes_on(before[::-1]) or _goes_on(after)):
            return True
        at = text.find(answer, at + 1)
    return False


def _goes_on(beside: str) -> bool:
    """Whether a word or number continues with these characters, counted away from it."""
    return beside[:1].isalnum() or (beside[:1] in (".", ",") and beside[1:].isdigit())


def log_groups(batch: RolloutBatch, bag: MetricBag) -> None:
    """Spread of the scores inside groups; each group weighs the same."""
    assert batch.scores is not None
    assert batch.solved is not None
    index, k = group_index(batch.group_ids)
    rows = torch.arange(len(index), device=index.device)
    first = rows.new_zeros(k).scatter_(0, index, rows)
    scores, counted = batch.scores.nan_to_num(), batch.counted
    alive = (group_size(batch.group_ids, counted) > 0)[first]
    groups = alive.sum()

    def mean_over_groups(tag: str, rows: torch.Tensor) -> None:
        bag.mean(tag, torch.where(alive, rows.double()[first], 0.0).sum(), groups)

    tied = group_is_tied(scores, batch.group_ids, counted)
    high = group_extreme(scores, batch.group_ids, counted, largest=True)
    low = group_extreme(scores, batch.group_ids, counted, largest=False)
    solved = group_extreme((batch.solved & counted).double(), batch.group_ids, counted, largest=True)
    all_solved = group_extreme(batch.solved.double(), batch.group_ids, counted, largest=False)
    mean_over_groups("reward/group_std", group_std(scores, batch.group_ids, counted))
    mean_over_groups("reward/pass_at_g", solved > 0)
    mean_over_groups("group/zero_std_frac", tied)
    # "wrong" and "right" ends of the dead groups, by the scores of this step where nothing is solved or all is
    mean_over_groups("group/all_min_frac", tied & (solved == 0) & (low == high))
    mean_over_groups("group/all_max_frac", tied & (all_solved > 0) & (low == high))
    bag.mean("group/size", group_size(batch.group_ids)[first].sum(), k)
    texts: dict[int, set[str]] = {}
    for g, member, sample in zip(index.tolist(), counted.tolist(), batch.samples, strict=True):
        if member:
            texts.setdefault(g, set()).add(sample.completion)
    members = group_size(batch.group_ids, counted)[first]
    bag.mean("group/distinct_frac", sum(len(t) / float(members[g]) for g, t in texts.items()), groups)


def log_advantages(batch: RolloutBatch, bag: MetricBag) -> None:
    """Advantages over the trained tokens, and how well the critic explains the returns."""
    assert batch.advantages is not None
    mask = batch.mask
    bag.masked("advantage/mean", batch.advantages, mask)
    # a deviation over all processes is not the mean of theirs
    everyone = all_rows(batch.advantages[mask])
    if len(everyone):
        bag.mean("advantage/std", _std(everyone), 1)
        bag.max("advantage/abs_max", everyone.abs().max())
    if batch.values is not None and batch.returns is not None:
        returns, values = all_rows(batch.returns[mask]).double(), all_rows(batch.values[mask]).double()
        spread = _std(returns) ** 2 if len(returns) else torch.zeros(())
        if float(spread) > 0:
            bag.mean("critic/explained_variance", 1 - _std(returns - values) ** 2 / spread, 1)
        bag.masked("critic/value_mean", batch.values, mask)
    if batch.ref_logp is not None and batch.old_logp is not None:
        bag.masked("policy/kl_ref", batch.old_logp.double() - batch.ref_logp.double(), mask)
    if batch.old_logp is not None and not batch.exact_logp:
        log_mismatch(batch, bag)


def log_mismatch(batch: RolloutBatch, bag: MetricBag) -> None:
    """How far the sampler's log-probs lie from the trainer's, where they are not the same numbers."""
    assert batch.old_logp is not None
    mask = batch.mask & (batch.row_role == POLICY)[:, None]
    gap = batch.behaviour_logp.double() - batch.old_logp.double()
    bag.masked("mismatch/kl", gap, mask)
    bag.masked("mismatch/abs_mean", gap.abs(), mask)
    if mask.any():
        bag.max("mismatch/abs_max", torch.where(mask, gap.abs(), 0.0).max())


def _std(values: torch.Tensor) -> torch.Tensor:
    return masked_std(values, torch.ones_like(values, dtype=torch.bool))


@torch.no_grad()
def log_trust_region(ctx: LossContext, bounds: Bounds, *, moved: bool) -> None:
    """How far the ratio went and where clipping binds.  ``moved`` False: one update per rollout, nothing can bind."""
    mask, bag = ctx.mask & (ctx.batch.row_role == POLICY)[:, None], ctx.metrics
    if ctx.batch.ref_logp is not None and ctx.batch.old_logp is None:
        bag.masked("policy/kl_ref", (ctx.logp - ctx.batch.ref_logp).double(), mask)
    if not moved:
        return
    advantages = ctx.advantages
    bag.masked("policy/ratio_mean", ctx.ratio, mask)
    assert ctx.batch.old_logp is not None
    gap = torch.where(mask, ctx.logp - ctx.batch.old_logp, 0.0)
    bag.masked("policy/kl_old", -gap, mask)
    if mask.any():
        bag.max("policy/log_ratio_abs_max", gap.abs().max())
    off = torch.zeros_like(mask)
    low = off if bounds.low is None else (ctx.ratio < bounds.low) & (advantages < 0)
    high = off if bounds.high is None else (ctx.ratio > bounds.high) & (advantages > 0)
    bag.masked("policy/clip_low_frac", low.double(), mask)
    bag.masked("policy/clip_high_frac", high.double(), mask)
    dropped = off if bounds.keep is None else ~bounds.keep
    bag.masked("policy/clip_frac", (low | high | dropped).double(), mask)
