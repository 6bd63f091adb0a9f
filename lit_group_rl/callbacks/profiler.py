"""Where the time of an RL step goes: a trace for Perfetto, TensorBoard or chrome://tracing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.profiler import ProfilerActivity, profile

from lit_group_rl.callbacks.base import Guard
from lit_group_rl.callbacks.console import CONSOLE


class Profile(Callback):
    """Records chosen RL steps with the torch profiler, one trace file each, under ``profile/`` in the run folder.

    A traced step is slower and its ``time/*`` numbers mean little.  The first steps warm up; step 3 is a good choice.
    """

    def __init__(self, steps: Sequence[int] = (3,), shapes: bool = False, run_dir: str | Path | None = None) -> None:
        """Nothing is recorded outside the steps.

        Args:
            steps: RL steps to record, counted from 1.
            shapes: Record the operators' input shapes too; larger files.
            run_dir: Folder for ``profile/``; null: the run folder.
        """
        super().__init__()
        if not steps or min(steps) < 1:
            raise ValueError(f"Profile(steps={list(steps)}): name at least one RL step, counted from 1")
        self.steps, self.shapes, self.run_dir = set(steps), shapes, run_dir
        self._guard = Guard()
        self._running: profile | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin if the step that starts is to be recorded."""
        if getattr(pl_module, "rl_step", 0) + 1 in self.steps and trainer.is_global_zero:
            activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            self._running = profile(activities=activities, record_shapes=self.shapes)
            self._running.__enter__()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End and write."""
        if self._running is None:
            return
        done, self._running = self._running, None
        done.__exit__(None, None, None)
        folder = Path(self.run_dir or trainer.default_root_dir) / "profile"
        path = folder / f"step-{pl_module.rl_step}.pt.trace.json"

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            done.export_chrome_trace(str(path))

        if self._guard("the profiler", write):
            CONSOLE.line(f"profile of RL step {pl_module.rl_step}: {path} (open it at ui.perfetto.dev)")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop recording."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None
