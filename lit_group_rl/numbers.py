"""What happens when a loss or a gradient is not finite: skip, then go back once, then stop."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_group_rl import checkpoint
from lit_group_rl.functional.collectives import all_sum, rank
from lit_group_rl.types import RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.engine import Engine

log = logging.getLogger(__name__)

IN_A_ROW = 3
KEPT_BATCHES = 3
FOLDER = "bad_batches"


class Diverged(Exception):
    """Several updates in a row were not finite, or a weight is not."""


class NumbersBroken(RuntimeError):
    """Going back did not help, or there is nothing to go back to."""

    exit_code = 3


class Numbers:
    """Counts updates in a row that were skipped because a number was not finite; all processes count alike."""

    def __init__(self) -> None:
        self.streak = 0
        self.rate = 1.0
        """Factor on every learning rate: halved when the run has gone back."""

    def observe(self, finite: bool, batch: RolloutBatch, module: Engine) -> None:
        """After an update; raises Diverged on the third bad one in a row."""
        if finite:
            self.streak = 0
            return
        self.streak += 1
        where = "" if module.run_folder is None else self._keep(batch, module.run_folder, module.rl_step)
        log.warning("update skipped in RL step %d: loss or gradient is not finite%s", module.rl_step + 1, where)
        if self.streak >= IN_A_ROW:
            raise Diverged(f"{IN_A_ROW} updates in a row were not finite")

    def check_weights(self, module: Engine) -> None:
        """Raises Diverged, on all processes, where a weight is not finite: a finite gradient may still overflow it."""
        bad = not finite_weights(module)
        if bool(all_sum(torch.tensor(float(bad), device=module.device))):
            raise Diverged("a weight is not finite")

    def _keep(self, batch: RolloutBatch, run: Path, step: int) -> str:
        folder = run / FOLDER
        path = folder / f"step_{step + 1:06d}_rank{rank()}.pt"
        if len(list(folder.glob(f"*_rank{rank()}.pt"))) >= KEPT_BATCHES:
            return ""
        try:
            folder.mkdir(exist_ok=True)
            torch.save(_plain(batch), path)
        except (OSError, RuntimeError) as e:
            return f" (its batch could not be written: {e})"
        return f"; its batch is in {path}"

    def go_back(self, module: Engine, what: str) -> None:
        """Take the newest good checkpoint up again with half the learning rate; raises NumbersBroken otherwise."""
        why = f"{what} in RL step {module.rl_step + 1}"
        fix = "Lower model.learning_rate or model.max_grad_norm, and look at the batches in " + FOLDER
        if self.rate < 1:
            raise NumbersBroken(f"{why}, again after going back with half the learning rate. {fix}")
        good = checkpoint.newest(module.run_folder) if module.run_folder is not None else None
        if good is None:
            raise NumbersBroken(f"{why}, and there is no checkpoint to go back to. {fix}")
        checkpoint.restore(module, good)
        self.streak, self.rate = 0, 0.5
        log.warning("%s: back to RL step %d with half the learning rate", why, module.rl_step)

    def state_dict(self) -> dict[str, Any]:
        """Both numbers."""
        return {"streak": self.streak, "rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.streak, self.rate = int(state["streak"]), float(state["rate"])


def finite_weights(module: torch.nn.Module) -> bool:
    """Whether all weights are finite; of sharded ones this process's part.

    One pass and one answer: a norm is finite where all its weights are, none of them beyond 1e19.
    """
    local = [p.to_local() if hasattr(p, "to_local") else p for p in module.parameters()]
    norms = [torch.linalg.vector_norm(p.detach(), dtype=torch.float32) for p in local if p.is_floating_point()]
    return not norms or bool(torch.stack([n.to(norms[0].device) for n in norms]).isfinite().all())


def _plain(batch: RolloutBatch) -> dict[str, Any]:
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    plain: dict[str, Any] = {k: v.cpu() for k, v in fields.items() if isinstance(v, Tensor)}
    plain["samples"] = [[str(s.prompt), s.completion, s.answer] for s in batch.samples]
    return plain
