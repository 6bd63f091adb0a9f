"""What a run leaves when it ends: summary.json, a learning curve, and a few lines that say what came out."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lit_group_rl.callbacks.base import Guard, RunCallback, to_json, write_atomic
from lit_group_rl.callbacks.console import CONSOLE, safe
from lit_group_rl.callbacks.metrics_file import FILE as METRICS
from lit_group_rl.callbacks.metrics_file import read_metrics
from lit_group_rl.callbacks.progress import HELDOUT, duration
from lit_group_rl.functional.collectives import all_max
from lit_group_rl.numbers import finite_weights
from lit_group_rl.signals import Stopped

SUMMARY, CURVE = "summary.json", "learning_curve.png"

History = dict[int, dict[str, float]]
"""RL step -> what was logged after it."""


class RunReport(RunCallback):
    """Writes summary.json and learning_curve.png into the run folder and prints the result, finished or stopped."""

    def __init__(self, recipe: str = "", run_dir: str | Path | None = None) -> None:
        """``recipe``: name in the summary, None = the run folder's parent; ``run_dir``: None = ``default_root_dir``."""
        self.recipe, self.run_dir = recipe, run_dir
        # now, because Lightning's CSVLogger empties the folder that it opens again
        self._earlier: History = read_metrics(Path(run_dir) / METRICS) if run_dir else {}
        self._history: History = {}
        self._before = 0.0
        self._started = time.monotonic()
        self._guard = Guard()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the history up to the step that a resumed run goes on from."""
        step = int(getattr(pl_module, "rl_step", 0))
        kept = {s: row for s, row in self._earlier.items() if step > 0 and s <= step}
        self._before = sum(row.get("time/step", 0.0) + row.get("time/eval", 0.0) for row in kept.values())
        self._history = kept | self._history
        self._started = time.monotonic()

    def on_metrics(self, trainer: Trainer, module: LightningModule, step: int, metrics: dict[str, float]) -> None:
        """Remember them."""
        self._history.setdefault(step, {}).update({k: float(v) for k, v in metrics.items()})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report on a run that came to its end."""
        finite = finite_weights(pl_module)
        finite = not bool(all_max(torch.tensor(float(not finite), device=pl_module.device)))
        self._report(trainer, pl_module, finite)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Report on a run that was stopped, as far as it came.  No collective: other processes may be gone."""
        if self._history:
            # whoever stops a run does not wait for a picture
            self._report(trainer, pl_module, finite_weights(pl_module), picture=not isinstance(exception, Stopped))

    def _report(self, trainer: Trainer, module: LightningModule, finite: bool, picture: bool = True) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(self.run_dir or trainer.default_root_dir)
        recipe = self.recipe or folder.parent.name
        seconds = self._before + time.monotonic() - self._started
        done = int(getattr(module, "rl_step", max(self._history, default=0)))
        summary = summarize(self._history, recipe, getattr(module, "seed", None), done, seconds, finite)
        self._guard(SUMMARY, lambda: write_atomic(folder / SUMMARY, to_json(summary) + "\n"))
        title = f"{recipe} · seed {summary['seed']}"
        drawn = picture and self._guard(CURVE, lambda: draw(self._history, folder / CURVE, title))
        total = int(getattr(module, "steps", done))
        prompts = getattr(getattr(trainer, "datamodule", None), "heldout_size", None)
        for line in end_lines(summary, prompts):
            CONSOLE.line(line)
        where: list[tuple[str, Path | str]] = [("logs", folder)]
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        where += (
            [("watch", f"tensorboard --logdir {_root(folder)}    first page: http://localhost:6006/#custom_scalars")]
            if boards
            else []
        )
        where += [("picture", folder / CURVE)] if drawn else []
        saved = any((folder / "checkpoints").glob("step_*"))
        where += [("go on", f"lit-group-rl fit --resume={folder}")] if saved and done < total else []
        where += [("export", f"lit-group-rl export {folder} my-model")] if saved else []
        if done < total:
            CONSOLE.line(
                f" stopped after RL step {done} of {total}" + ("" if saved else ", before the first checkpoint")
            )
        for name, value in where:
            CONSOLE.line(f" {name:<8} {safe(str(value))}")


def summarize(
    history: History, recipe: str, seed: int | None, rl_steps: int, seconds: float, finite_weights: bool
) -> dict[str, Any]:
    """The content of summary.json; None where nothing was logged."""
    heldout = series(history, HELDOUT)[1]
    completions = series(history, "progress/completions")[1]
    numbers = all(math.isfinite(v) for row in history.values() for v in row.values())
    return {
        "recipe": recipe,
        "seed": seed,
        "rl_steps": rl_steps,
        "completions": round(completions[-1]) if completions and math.isfinite(completions[-1]) else None,
        "heldout_start": heldout[0] if heldout else None,
        "heldout_end": heldout[-1] if heldout else None,
        "seconds": round(seconds, 1),
        "finite": numbers and finite_weights,
    }


def end_lines(summary: dict[str, Any], prompts: int | None) -> list[str]:
    """'held-out 20.3% → 91.4% (greedy, 256 prompts) · 2 min 51 s · 81 920 completions', and a warning if need be."""
    parts = []
    if summary["heldout_start"] is not None:
        size = f", {prompts} prompts" if prompts else ""
        start, end = (_percent(summary[k]) for k in ("heldout_start", "heldout_end"))
        parts.append(f"held-out {start} → {end} (greedy{size})")
    parts.append(duration(summary["seconds"]))
    if summary["completions"] is not None:
        parts.append(f"{summary['completions']:,} completions".replace(",", " "))
    lines = [" · ".join(parts)]
    if not summary["finite"]:
        lines.append(f" warning: a logged number or a weight is NaN or infinite; {METRICS} shows from which step on")
    return lines


def series(history: History, tag: str) -> tuple[list[int], list[float]]:
    """Steps and values of one tag, in order of steps."""
    steps = [s for s in sorted(history) if tag in history[s]]
    return steps, [history[s][tag] for s in steps]


def draw(history: History, path: Path, title: str) -> None:
    """Two panels over RL steps: held-out accuracy with train reward; entropy with dead groups."""
    # matplotlib takes a second to import; Figure without pyplot needs no display and touches no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(title)
    reward, held = "#e69f00", "#0072b2"
    _line(above, history, "reward/mean", reward, "train reward, at the sampling temperature", alpha=0.35)
    _line(above, history, "reward/mean", reward, "train reward, mean of 9 RL steps", window=9)
    _line(above, history, HELDOUT, held, "held-out accuracy, greedy", marker="o", linewidth=2)
    above.set_ylabel("accuracy, reward")
    shown = [v for tag in ("reward/mean", HELDOUT) for v in series(history, tag)[1] if math.isfinite(v)]
    if shown and min(shown) >= 0 and max(shown) <= 1:
        above.set_ylim(-0.03, 1.03)
    right = below.twinx()
    _line(below, history, "policy/entropy", "#009e73", "entropy")
    _line(right, history, "group/zero_std_frac", "#cc79a7", "dead groups")
    below.set_ylabel("entropy (nats per token)", color="#009e73")
    entropy = [v for v in series(history, "policy/entropy")[1] if math.isfinite(v)]
    below.set_ylim(0, 1.1 * max(entropy, default=0.0) or 1.0)
    right.set_ylabel("dead groups (share)", color="#cc79a7")
    right.set_ylim(-0.03, 1.03)
    below.set_xlabel("RL steps")
    below.xaxis.get_major_locator().set_params(integer=True)
    for axes in (above, below):
        axes.grid(alpha=0.25)
    if above.lines:
        above.legend(loc="best", frameon=False)
    part = path.with_name(path.name + ".part")
    try:
        figure.savefig(part, format="png")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _line(axes: Any, history: History, tag: str, color: str, label: str, window: int = 1, **style: Any) -> None:
    steps, values = series(history, tag)
    known = [(s, v) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    if not known or len(known) < window:
        return
    steps, values = [s for s, _ in known], [v for _, v in known]
    smooth = [sum(values[i - window + 1 : i + 1]) / window for i in range(window - 1, len(values))]
    axes.plot(steps[window // 2 : len(steps) - window // 2], smooth, color=color, label=label, **style)


def _percent(share: float) -> str:
    return f"{share:.1%}" if math.isfinite(share) else "not a number"


def _root(folder: Path) -> Path:
    """runs/ of runs/<recipe>/<n>/, so that TensorBoard shows all runs side by side."""
    return folder.parent.parent if len(folder.parts) > 2 else folder
