"""When checkpoints are written."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities.exceptions import SIGTERMException

from lit_group_rl import checkpoint
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.functional.collectives import rank

log = logging.getLogger(__name__)


class CheckpointCallback(RunCallback):
    """A checkpoint every ``every`` RL steps, at the end, and when the run is asked to stop.

    The best by held-out accuracy is kept beside the newest.  A save that fails (disk full) is said loudly and tried
    again; after three in a row the run stops.
    """

    def __init__(self, run_dir: str = ".", every: int = 20, keep: int = 2, monitor: str = "eval/heldout/accuracy") -> None:
        """Where and how often.

        Args:
            run_dir: The run's folder.
            every: RL steps between checkpoints.
            keep: Newest checkpoints to keep, beside the best.
            monitor: Held-out number whose largest value marks the best; NaN never does.
        """
        self.folder = Path(run_dir) / "checkpoints"
        self.every, self.keep, self.monitor = every, keep, monitor
        self.best: float | None = None
        self.best_step = -1
        self._failures = 0

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best, "best_step": self.best_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it back."""
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]

    def on_metrics(self, trainer: Any, module: Any, step: int, metrics: dict[str, float]) -> None:
        """Save when due, at an evaluation that is the best so far, and after the last step."""
        value = metrics.get(self.monitor)
        better = value is not None and value == value and (self.best is None or value > self.best)
        if better:
            self.best, self.best_step = value, step
        if step and (better or step % self.every == 0 or step == module.steps):
            self._save(module, best=better)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Asked to stop between RL steps: keep what there is."""
        if isinstance(exception, SIGTERMException) and module.rl_step:
            self._save(module, best=False)

    def _save(self, module: Any, *, best: bool) -> None:
        try:
            written = checkpoint.save(module, self.folder, self.keep)
            if best and rank() == 0 and written is not None:
                checkpoint.point(self.folder, "best", written.name)
            self._failures = 0
        except OSError as e:
            self._failures += 1
            log.warning("no checkpoint at RL step %d: %s. The previous ones are untouched", module.rl_step, e)
            if self._failures >= 3:
                raise
