"""When checkpoints are written."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from lit_group_rl import checkpoint
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.functional.collectives import all_max, all_objects, barrier, rank, world_size
from lit_group_rl.types import RecipeError

log = logging.getLogger(__name__)

FAILURES = 3


class CannotSave(RuntimeError):
    """Checkpoints cannot be written, and to go on would risk all that is not saved."""

    exit_code = 3


class CheckpointCallback(RunCallback):
    """A checkpoint every ``every`` RL steps, at the end, and when the run is asked to stop.

    The best by held-out accuracy is kept beside the newest.  A save that fails (disk full) is said loudly and tried
    again; after three in a row the run stops.
    """

    def __init__(
        self, run_dir: str = ".", every: int = 20, keep: int = 2, monitor: str = "eval/heldout/accuracy"
    ) -> None:
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
        self._saved: tuple[int, Any] = (0, None)

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
            self._save(module, checkpoint.plain_state(module), best=better)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Be the only process that writes this folder, and see that it can be written."""
        if stage != "fit":
            return
        pl_module.run_folder = self.folder.parent
        problem = checkpoint.claim(self.folder.parent) if rank() == 0 else None
        problem = all_objects(problem)[0]  # type: ignore[assignment]
        if problem is not None:
            raise RecipeError(problem)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Whatever ended the run: keep its last finished RL step, if the weights still are those."""
        together = world_size() == 1 or module.signals.agreed
        if module.boundary is not None and module.rl_step and together:
            if (module.boundary["rl_step"], module.boundary["pending"]) != self._saved:
                self._save(module, module.boundary, best=False)
            barrier()  # whoever leaves first takes the others down

    def _save(self, module: Any, plain: dict[str, Any], *, best: bool) -> None:
        problem = ""
        try:
            written = checkpoint.save(module, self.folder, self.keep, plain)
            if best and written is not None:
                checkpoint.point(self.folder, "best", written.name)
        except (OSError, checkpoint.NotFinite) as e:
            problem = str(e)
            log.warning("no checkpoint at RL step %d: %s. The previous ones are untouched", plain["rl_step"], e)
        if all_max(torch.tensor(float(bool(problem)), device=module.device)) == 0:
            self._saved, self._failures = (plain["rl_step"], plain["pending"]), 0
            return
        self._failures += 1
        if self._failures >= FAILURES:
            raise CannotSave(f"{FAILURES} checkpoints in a row could not be written ({problem or 'see above'})")
