"""What a run shows and what it leaves in its folder."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback

from lit_group_rl.callbacks.base import Guard, RunCallback
from lit_group_rl.callbacks.budget import CompletionBudget
from lit_group_rl.callbacks.coach import Coach
from lit_group_rl.callbacks.metrics_file import MetricsFile
from lit_group_rl.callbacks.profiler import Profile
from lit_group_rl.callbacks.progress import Progress
from lit_group_rl.callbacks.report import RunReport
from lit_group_rl.callbacks.samples import SampleTable
from lit_group_rl.callbacks.tensorboard import TensorBoardPage
from lit_group_rl.callbacks.watchdog import Watchdog

__all__ = [
    "Coach",
    "CompletionBudget",
    "Guard",
    "MetricsFile",
    "Profile",
    "Progress",
    "RunCallback",
    "RunReport",
    "SampleTable",
    "TensorBoardPage",
    "Watchdog",
    "default_callbacks",
]


def default_callbacks(run_dir: Path, recipe: str) -> list[Callback]:
    """The callbacks of every run; the report comes last, so that it can name what the others wrote."""
    from lit_group_rl.callbacks.checkpoint import CheckpointCallback

    return [
        Progress(),
        SampleTable(run_dir=run_dir),
        TensorBoardPage(recipe, run_dir=run_dir),
        Coach(run_dir=run_dir),
        CheckpointCallback(str(run_dir)),
        Watchdog(),
        RunReport(recipe, run_dir=run_dir),
    ]
