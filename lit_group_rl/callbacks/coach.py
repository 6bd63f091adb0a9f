"""The coach: says what the numbers of a run point to, and what to try next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lit_group_rl.callbacks.base import Guard, RunCallback, keep_until, to_json
from lit_group_rl.callbacks.coach_history import Facts, History
from lit_group_rl.callbacks.coach_rules import RULES
from lit_group_rl.callbacks.console import CONSOLE, cell, safe
from lit_group_rl.callbacks.metrics_file import FILE as METRICS
from lit_group_rl.callbacks.metrics_file import read_metrics
from lit_group_rl.functional.collectives import all_max
from lit_group_rl.signals import PeerFailed

FILE = "coach.jsonl"
PAUSE = 50
"""RL steps at least between two lines of the same rule."""


class CoachStopped(RuntimeError):
    """A rule spoke that the recipe lets end the run."""

    exit_code = 3


class Coach(RunCallback):
    """One line on the console, in TensorBoard's Text tab and in coach.jsonl when a rule of docs/coach.md applies.

    A rule speaks once, and again only after its condition has been absent and 50 RL steps have passed.  It never stops
    a run unless ``stop_on`` names it; then the run ends with a checkpoint and exit code 3.
    """

    def __init__(self, stop_on: Sequence[str] = (), run_dir: str | Path | None = None) -> None:
        """``stop_on``: rules that end the run, e.g. [R1, R10]; ``run_dir``: folder of coach.jsonl, None = the trainer's
        ``default_root_dir``.
        """
        known = [rule.id for rule in RULES]
        unknown = [name for name in stop_on if name not in known]
        if unknown:
            raise ValueError(f"Coach(stop_on={list(stop_on)!r}): stop_on may name {', '.join(known)}")
        self.stop_on, self.run_dir = tuple(stop_on), run_dir
        self._history, self._facts = History(), Facts()
        self._spoke: dict[str, int] = {}
        self._holds: set[str] = set()
        self._stop = ""
        self._guard = Guard()

    def state_dict(self) -> dict[str, Any]:
        """When each rule last spoke, and which conditions hold."""
        return {"spoke": dict(self._spoke), "holds": sorted(self._holds)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self._spoke, self._holds = dict(state_dict["spoke"]), set(state_dict["holds"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Read what the run is, and on resuming the numbers up to the step that it goes on from."""
        self._facts = facts_of(pl_module, getattr(trainer, "datamodule", None))
        if not trainer.is_global_zero:
            return
        step, path = int(getattr(pl_module, "rl_step", 0)), self._path(trainer)
        earlier = read_metrics(path.parent / METRICS) if step else {}
        for s in sorted(s for s in earlier if s <= step):
            self._history.add(s, earlier[s])
        if path.is_file():
            self._guard(FILE, lambda: keep_until(path, step))

    def on_metrics(self, trainer: Trainer, module: LightningModule, step: int, metrics: dict[str, float]) -> None:
        """Look at every rule; the first process does, which has the numbers of all."""
        if not trainer.is_global_zero:
            return
        self._history.add(step, metrics)
        for rule in RULES:
            said = rule.look(self._history, self._facts)
            if said is None:
                self._holds.discard(rule.id)
            elif rule.id not in self._holds and step - self._spoke.get(rule.id, -PAUSE) >= PAUSE:
                self._holds.add(rule.id)
                self._spoke[rule.id] = step
                self._speak(trainer, rule.id, step, said)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        """End the run if a rule of ``stop_on`` has spoken; here, where the step is finished and can be saved."""
        if not self.stop_on:
            return
        if all_max(torch.tensor(float(bool(self._stop)), device=pl_module.device)) == 0:
            return
        pl_module.signals.agreed = True  # all processes end here together, so the checkpoint may be written by all
        if not self._stop:
            raise PeerFailed("the coach of the first process ended the run")  # which says why
        raise CoachStopped(self._stop)

    def _speak(self, trainer: Trainer, rule: str, step: int, said: str) -> None:
        CONSOLE.line(f"coach {rule:<3} {safe(said)}")
        self._guard(FILE, lambda: self._append(trainer, to_json({"step": step, "rule": rule, "says": said})))
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                text = f"**{rule}** {cell(said)}"
                self._guard("TensorBoard coach", lambda: logger.experiment.add_text(f"coach/{rule}", text, step))  # noqa: B023
        if rule in self.stop_on:
            self._stop = f"coach {rule} at RL step {step}: {said}"

    def _append(self, trainer: Trainer, line: str) -> None:
        path = self._path(trainer)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _path(self, trainer: Trainer) -> Path:
        return Path(self.run_dir or trainer.default_root_dir) / FILE


def read_coach(folder: Path) -> list[dict[str, Any]]:
    """What the coach said in a run: step, rule, says; empty if it said nothing."""
    path = folder / FILE
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def facts_of(module: Any, data: Any) -> Facts:
    """The settings that advice depends on, as far as the module has them."""
    parts: dict[str, Any] = getattr(module, "parts", {})
    aux: dict[str, Any] = parts.get("aux_losses") or {}
    rewards: dict[str, Any] = parts.get("rewards") or {}
    sampler, policy = parts.get("sampler"), parts.get("policy")

    def number(value: Any) -> float | None:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def terms(kind: str) -> tuple[str, ...]:
        return tuple(name for name, term in aux.items() if type(term).__name__ == kind)

    return Facts(
        max_new_tokens=getattr(sampler, "max_new_tokens", None),
        group_size=getattr(sampler, "group_size", None),
        level=getattr(getattr(data, "source", None), "level", None),
        learning_rate=number(parts.get("learning_rate")),
        lora=bool(getattr(policy, "lora", None)),
        updates=getattr(module, "updates_per_rollout", 1),
        temperature=number(getattr(sampler, "temperature", None)),
        advantage=type(parts.get("advantage")).__name__,
        aggregator=type(parts.get("aggregator")).__name__,
        sequence_ratio=type(parts.get("ratio")).__name__.startswith("Sequence"),
        clip_high=number(getattr(parts.get("clip_policy"), "high", None)),
        entropy_terms=terms("Entropy"),
        kl_terms=terms("KL"),
        workers={
            name: r.workers if r.early else 0
            for name, r in rewards.items()
            if hasattr(r, "workers") and not getattr(r, "in_process", False)
        },
        extracts=tuple(f"{name}.{o}" for name, r in rewards.items() for o in ("extract", "find") if hasattr(r, o)),
    )
