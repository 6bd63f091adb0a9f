"""The first look and the plan of ``check``: a small rollout, and what the whole run will take."""

from __future__ import annotations

from typing import Any

import torch

from lit_group_rl.cli.check import Report, seconds, stopwatch
from lit_group_rl.cli.check_memory import kept_per_token, memory_gb
from lit_group_rl.functional.groups import group_index, group_is_tied
from lit_group_rl.functional.rng import seeded
from lit_group_rl.rewards.runner import RewardMonitor, score_rewards
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import RolloutBatch

FIRST_LOOK = ((5_000_000, 64), (50_000_000, 16), (float("inf"), 2))
"""(parameters below, prompts): few enough for seconds on a CPU."""


def first_look(module: Any, data: Any, device: torch.device, report: Report, shards: int = 1) -> None:
    """Sample and score once; tell what there is to learn from, and what a run costs."""
    policy, clock = module.policy, Clock(0, module.steps)
    policy.net.to(device)
    parameters = sum(p.numel() for p in policy.net.parameters())
    most = next(prompts for limit, prompts in FIRST_LOOK if parameters < limit)
    count = min(most, data.prompts_per_step)
    drawn = data.more(count)
    with torch.no_grad():  # the first call pays for lazy imports and is no measure
        policy.generate([policy.encode(drawn.prompts[0])], copies=1, keys=[0], max_new_tokens=1, temperature=1.0)
    time_of = stopwatch()
    with torch.no_grad(), seeded("sample", module.seed, 0):
        batch = module.sampler.sample(policy, drawn.prompts, drawn.positions, clock, module.seed)
    sampling = time_of()
    time_of = stopwatch()
    score_rewards(module.rewards, batch, clock, module.seed, RewardMonitor())
    scoring = time_of()
    time_of = stopwatch()
    with torch.no_grad():
        policy.score(batch)
    forward = time_of()
    _report_signal(batch, report)
    # a backward pass costs about two forward passes
    passes = 3 * module.ppo_epochs + bool(module.describe(1).needs("ref_logp"))
    step = (sampling + scoring + passes * forward) * data.prompts_per_step / count
    prompt = int(batch.prompt_mask.sum(1).max())
    one_group = batch.rows((batch.group_ids == batch.group_ids[0]).nonzero().squeeze(1))
    kept = kept_per_token(policy, one_group)
    memory = memory_gb(module, kept, prompt, data.prompts_per_step, shards, device.type == "cpu")
    _report_plan(module, data, step, memory, report, shards)


def _report_signal(batch: RolloutBatch, report: Report) -> None:
    assert batch.scores is not None
    assert batch.solved is not None
    index, groups = group_index(batch.group_ids)
    tied = group_is_tied(batch.scores.nan_to_num(), batch.group_ids, ~batch.scores.isnan())
    alive = torch.zeros(groups, dtype=torch.bool).index_put_((index[~tied].cpu(),), torch.tensor(True)).double().mean()
    solved = batch.solved.double().mean()
    cut = batch.truncated.double().mean()
    text = (
        f"{groups} groups x {len(batch) // groups}: {solved:.0%} solved, {alive:.0%} of groups alive, {cut:.0%} cut off"
    )
    first = batch.samples[0]
    example = f"e.g. {_short(first.prompt)} → {_short(first.completion)}"
    if cut > 0.5:
        report.row("first look", "note", text, "raise model.sampler.max_new_tokens: most answers never end", example)
    elif alive == 0 and solved == 0:
        why = "nothing is solved: use easier data, a stronger policy, or warm it up first"
        report.row("first look", "note", text, why, example)
    elif alive == 0:
        why = "all groups agree: use harder data, or a larger model.sampler.group_size"
        report.row("first look", "note", text, why, example)
    else:
        report.row("first look", "ok", text + "   ← there is something to learn from", example)


def _short(text: Any) -> str:
    text = text if isinstance(text, str) else str(text[-1].get("content", ""))
    text = " ".join(text.split())
    return repr(text if len(text) <= 50 else text[:49] + "…")


def _report_plan(module: Any, data: Any, step: float, memory: float, report: Report, shards: int) -> None:
    completions = module.steps * data.prompts_per_step * module.sampler.group_size
    updates = module.steps * module.updates_per_rollout
    report.row(
        "plan",
        "ok",
        f"{module.steps} steps x {data.prompts_per_step} prompts x {module.sampler.group_size} = "
        f"{_thousands(completions)} completions, {_thousands(updates)} updates",
        f"about {seconds(step * module.steps)}, about {memory:.1f} GB"
        + (f" on each of {shards} processes" if shards > 1 else ""),
    )


def _thousands(number: int) -> str:
    return f"{number:,}".replace(",", " ")
