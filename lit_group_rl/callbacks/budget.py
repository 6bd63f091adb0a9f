"""The end of a run by completions instead of RL steps."""

from __future__ import annotations

from typing import Any

from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.progress import HELDOUT


class CompletionBudget(RunCallback):
    """Ends the run with the RL step that reaches ``completions``, and evaluates there.

    Runs whose steps cost different numbers of completions (dynamic sampling, another group size) then end at the same
    budget.  ``steps`` stays the upper bound, and the length over which schedules run.  Name it before the callbacks
    that write checkpoints and reports: they are then told the last step as the last.
    """

    def __init__(self, completions: int) -> None:
        """``completions``: sampled since the start, over all processes; a resumed run counts its earlier ones."""
        if completions < 1:
            raise ValueError(f"CompletionBudget(completions={completions}): must be at least 1")
        self.completions = completions

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """A run that was ended after its last step makes no further one."""
        self._end_if_reached(trainer, pl_module, pl_module.recorder.totals["completions"])

    def on_metrics(self, trainer: Any, module: Any, step: int, metrics: dict[str, float]) -> None:
        """End after the step that reaches the budget."""
        ends = self._end_if_reached(trainer, module, metrics.get("progress/completions", 0.0))
        if ends and HELDOUT not in metrics and module.heldout is not None:
            module.emit(module.evaluate())

    def _end_if_reached(self, trainer: Any, module: Any, completions: float) -> bool:
        if completions < self.completions:
            return False
        module.steps = module.rl_step
        trainer.should_stop = True
        return True
