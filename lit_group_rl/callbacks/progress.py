"""Where the run stands, in RL steps and in numbers that say whether it learns."""

from __future__ import annotations

from collections.abc import Callable

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.console import CONSOLE
from lit_group_rl.tags import largest_k

HELDOUT = "eval/heldout/accuracy"
LINES_PER_RUN = 20


class Progress(ProgressBar, RunCallback):
    """Shows reward, solved, dead groups, length and seconds per RL step.

    One live line on a terminal; elsewhere (a file, a pipe) a line every ``every`` RL steps.  Every held-out result
    stays.  The loss is not shown: near 0 is its normal value, and it says nothing about learning.
    """

    def __init__(self, every: int | None = None) -> None:
        """``every``: RL steps between printed lines when the output is not a terminal; None = about 20 lines a run."""
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(f"Progress(every={every}): every must be at least 1, or null for about 20 lines a run")
        self.every = every
        self._on = True
        self._seconds: float | None = None

    def disable(self) -> None:
        """Show nothing."""
        self._on = False

    def enable(self) -> None:
        """Show again."""
        self._on = True

    def print(self, *args: object, sep: str = " ", **kwargs: object) -> None:
        """Print without breaking the live line."""
        CONSOLE.line(sep.join(str(a) for a in args))

    def on_metrics(self, trainer: Trainer, module: LightningModule, step: int, metrics: dict[str, float]) -> None:
        """Renew the live line, and print what is due."""
        if not self._on or not trainer.is_global_zero:
            return
        total = int(getattr(module, "steps", step))
        head = f"step {step:>{len(str(total))}}"
        train, heldout = train_summary(metrics), heldout_summary(metrics)
        if train and CONSOLE.terminal:
            CONSOLE.live(f"{head}/{total}  {train}{self._left(metrics, total - step)}")
        elif train and self._due(step, total):
            CONSOLE.line(f"{head}  {train}")
        if heldout:
            CONSOLE.line(f"{head}  {heldout}")
            if train and CONSOLE.terminal:
                CONSOLE.live(f"{head}/{total}  {train}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the last live line on the screen."""
        CONSOLE.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the last live line on the screen."""
        CONSOLE.end()

    def _due(self, step: int, total: int) -> bool:
        every = self.every or max(1, round(total / LINES_PER_RUN))
        return step in (1, total) or step % every == 0

    def _left(self, metrics: dict[str, float], steps: int) -> str:
        new = metrics.get("time/step")
        if new is None or steps <= 0:
            return ""
        # the first step is slower (compilation, caches), and single steps jump
        self._seconds = new if self._seconds is None else 0.8 * self._seconds + 0.2 * new
        return f" · {duration(self._seconds * steps)} left"


def train_summary(metrics: dict[str, float]) -> str:
    """'reward 0.63 · solved 58% · dead 12% · len 4.1 · 1.9 s/step', without what was not logged."""
    shown: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("reward/mean", lambda v: f"reward {v:.2f}"),
        ("reward/accuracy", lambda v: f"solved {v:.0%}"),
        ("group/zero_std_frac", lambda v: f"dead {v:.0%}"),
        ("length/mean", lambda v: f"len {v:.1f}"),
        ("time/step", lambda v: f"{v:.{2 if v < 1 else v < 10:d}f} s/step"),
    )
    parts = [text(metrics[tag]) for tag, text in shown if tag in metrics]
    return " · ".join(parts) if "reward/mean" in metrics else ""


def heldout_summary(metrics: dict[str, float]) -> str:
    """'held-out 41.0% · mean@8 38.2% · pass@8 63.0%', without what was not logged; pass@k for the largest k."""
    parts = [f"held-out {metrics[HELDOUT]:.1%}"] if HELDOUT in metrics else []
    for name in ("mean", "pass", "maj"):
        tag = largest_k(f"eval/heldout/{name}_at_K", set(metrics))
        if tag:
            parts.append(f"{name}@{tag.rpartition('_')[2]} {metrics[tag]:.1%}")
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """'45 s', '2 min 51 s', '3 h 04 min'."""
    if not seconds < 1e9:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
