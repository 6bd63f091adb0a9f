"""What the policy writes: completions by prompt, with everything that was computed from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lit_group_rl.callbacks.base import Guard, RunCallback, keep_until, to_json, write_atomic
from lit_group_rl.callbacks.console import CONSOLE, cell, safe
from lit_group_rl.plain_text import plain_prompt
from lit_group_rl.types import BASELINE, EXPERT, RolloutBatch

FILE = "samples.jsonl"
CONSOLE_LIMIT = 24
CONSOLE_MEMBERS = 8
FILE_LIMIT = 64 * 2**20
"""Bytes of samples.jsonl above which it is thinned."""


class SampleTable(RunCallback):
    """Writes a few whole groups to TensorBoard's Text tab, to samples.jsonl, and one to the console.

    Groups are the first of the step, not chosen by result; the console shows one in which members differ if there is
    one, since only those teach.  With several processes they are those of the first.  Above 64 MiB every second step
    goes out of samples.jsonl, so that what stays still spans the run.
    """

    def __init__(
        self,
        every: int = 20,
        groups: int = 4,
        console_every: int = 1,
        run_dir: str | Path | None = None,
        file_groups: int = 16,
    ) -> None:
        """``every``: RL steps between tables (also after the first and the last), ``groups``: prompts in a table,
        ``console_every``: held-out evaluations between groups on the console, 0 = none; ``run_dir``: folder of
        samples.jsonl, None = the trainer's ``default_root_dir``; ``file_groups``: prompts of a step in samples.jsonl.
        """
        least = {"every": 1, "groups": 1, "console_every": 0, "file_groups": 1}
        given = {"every": every, "groups": groups, "console_every": console_every, "file_groups": file_groups}
        for name, value in given.items():
            if value < least[name]:
                raise ValueError(f"SampleTable({name}={value}): {name} must be at least {least[name]}")
        self.every, self.groups, self.console_every, self.file_groups = every, groups, console_every, file_groups
        self.run_dir = run_dir
        self._evaluations = 0
        self._guard = Guard()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop what an interrupted run wrote after the checkpoint that it goes on from: it is made anew."""
        path = self._path(trainer)
        if trainer.is_global_zero and path.is_file():
            self._guard(FILE, lambda: keep_until(path, int(getattr(pl_module, "rl_step", 0))))

    def on_metrics(self, trainer: Trainer, module: LightningModule, step: int, metrics: dict[str, float]) -> None:
        """Write the tables that are due."""
        batch = getattr(module, "last_batch", None)
        if batch is None or len(batch) == 0 or step < 1 or not trainer.is_global_zero:
            return
        total = int(getattr(module, "steps", step))
        if step in (1, total) or step % self.every == 0:
            groups = sample_groups(batch, step)
            self._guard(FILE, lambda: self._append(trainer, groups))
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger):
                    text = markdown(groups[: self.groups])
                    self._guard("TensorBoard samples", lambda: logger.experiment.add_text("samples/train", text, step))  # noqa: B023
        if "eval/heldout/accuracy" in metrics and self.console_every:
            self._evaluations += 1
            if self._evaluations % self.console_every == 0:
                groups = sample_groups(batch, step)
                mixed = [g for g in groups if len({m["total"] for m in g["members"]}) > 1]
                CONSOLE.line("  " + console_line((mixed or groups)[0]))

    def _append(self, trainer: Trainer, groups: list[dict[str, Any]]) -> None:
        path = self._path(trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(to_json(group) + "\n" for group in groups[: self.file_groups]))
        if path.stat().st_size > FILE_LIMIT:
            _thin(path)

    def _path(self, trainer: Trainer) -> Path:
        return Path(self.run_dir or trainer.default_root_dir) / FILE


def sample_groups(batch: RolloutBatch, step: int) -> list[dict[str, Any]]:
    """The rows of a rollout by prompt, in order of sampling, as plain data.  NaN becomes None."""
    lengths, weights = batch.own_lengths.tolist(), batch.mask.double()
    totals = None if batch.scores is None else batch.totals.tolist()
    advantages = None
    if batch.advantages is not None:
        kept = batch.advantages.double().where(batch.mask, 0.0)
        advantages = (kept.sum(1) / weights.sum(1).clamp(min=1.0)).tolist()
    rewards = {name: values.tolist() for name, values in batch.rewards.items()}
    solved = None if batch.solved is None else batch.solved.tolist()
    groups: dict[int, dict[str, Any]] = {}
    for i, (group, sample) in enumerate(zip(batch.group_ids.tolist(), batch.samples, strict=True)):
        if group not in groups:
            groups[group] = {"step": step, "prompt": sample.prompt, "answer": sample.answer, "members": []}
        groups[group]["members"].append(
            {
                "completion": sample.completion,
                "rewards": {name: _number(values[i]) for name, values in rewards.items()},
                "total": None if totals is None else _number(totals[i]),
                "advantage": None if advantages is None else _number(advantages[i]),
                "solved": None if solved is None else bool(solved[i]),
                "length": int(lengths[i]),
                "end": "cut" if bool(batch.truncated[i]) else "eos",
                "role": {BASELINE: "baseline", EXPERT: "expert"}.get(int(batch.row_role[i]), "policy"),
            }
        )
    return list(groups.values())


def markdown(groups: list[dict[str, Any]]) -> str:
    """A block per prompt: the prompt, the right answer, the group's mean, and a table with a row per completion."""
    return "\n\n---\n\n".join(_block(group) for group in groups)


def console_line(group: dict[str, Any]) -> str:
    """'24+53= → 77 ✓1.0  76 ✗0.0 …  group mean 0.75'."""
    members = group["members"]
    shown = []
    for m in members[:CONSOLE_MEMBERS]:
        mark = {True: "✓", False: "✗", None: ""}[m["solved"]]
        shown.append(f"{safe(m['completion'], CONSOLE_LIMIT) or '∅'} {mark}{_text(m['total'], '.1f')}")
    rest = " …" if len(members) > CONSOLE_MEMBERS else ""
    mean = _mean([m["total"] for m in members])
    prompt = safe(plain_prompt(group["prompt"]), 2 * CONSOLE_LIMIT)
    return f"{prompt} → {'  '.join(shown)}{rest}  group mean {_text(mean, '.2f')}"


def _block(group: dict[str, Any]) -> str:
    members = group["members"]
    names = list(members[0]["rewards"])
    head = ["completion", *names, "total", "advantage", "length", "end"]
    mean = _text(_mean([m["total"] for m in members]), ".2f")
    answer = "" if group["answer"] is None else f" · answer {cell(group['answer'])}"
    lines = [
        f"**{cell(plain_prompt(group['prompt']))}**{answer} · group mean {mean}",
        "",
        "| " + " | ".join(cell(h) for h in head) + " |",
        "|---" + "|---:" * (len(head) - 2) + "|---|",
    ]
    for m in members:
        role = "" if m["role"] == "policy" else f" ({m['role']})"
        cells = [cell(m["completion"]) + role]
        cells += [_text(m["rewards"][name], ".3g") for name in names]
        cells += [_text(m["total"], ".3g"), _text(m["advantage"], "+.2f"), str(m["length"]), m["end"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _thin(path: Path) -> None:
    """Drop every second step; the first and the newest stay."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    at = [json.loads(line)["step"] for line in lines]
    steps = sorted(set(at))
    kept = {*steps[::2], steps[-1]}
    write_atomic(path, "".join(line for line, step in zip(lines, at, strict=True) if step in kept))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
