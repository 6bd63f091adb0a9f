"""TensorBoard beyond single curves: a first page, what ran, and what the numbers mean."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lit_group_rl import tags
from lit_group_rl.callbacks.base import Guard, RunCallback
from lit_group_rl.callbacks.console import cell


class TensorBoardPage(RunCallback):
    """Custom Scalars: the curated first page.  Text: the run card, the resolved config, the metric definitions."""

    def __init__(self, recipe: str = "", run_dir: str | Path | None = None) -> None:
        """``recipe``: name on the run card; ``run_dir``: folder of config.yaml, None = ``default_root_dir``."""
        self.recipe, self.run_dir = recipe, run_dir
        self._seen: set[str] = set()
        self._drawn: set[str] = set()
        self._guard = Guard()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the cards, and tell TensorBoard where a resumed run goes on."""
        step = int(getattr(pl_module, "rl_step", 0))
        folder = Path(self.run_dir or trainer.default_root_dir)
        for writer in self._writers(trainer):
            self._guard("TensorBoard", lambda: _start(writer, step) if step else None)  # noqa: B023
            cards = {
                "setup/card": run_card(trainer, pl_module, self.recipe or folder.parent.name),
                "setup/metrics": tags.markdown(),
            }
            # a run resumed with other options leaves its configuration beside the first one
            config = max(folder.glob("config*.yaml"), key=lambda p: p.stat().st_mtime, default=None)
            if config is not None:
                cards["setup/config"] = "```yaml\n" + config.read_text(encoding="utf-8", errors="replace") + "\n```"
            for tag, text in cards.items():
                self._guard("TensorBoard", lambda: writer.add_text(tag, text, step))  # noqa: B023

    def on_metrics(self, trainer: Trainer, module: LightningModule, step: int, metrics: dict[str, float]) -> None:
        """Lay out the first page with the charts for which there are numbers."""
        self._seen |= set(metrics)
        layout = first_page(self._seen)
        drawn = {title for charts in layout.values() for title in charts}
        # before the first RL step there are only held-out numbers; later ones (a critic that starts late) add charts
        new = step >= 1 and drawn != self._drawn
        self._drawn = drawn if new else self._drawn
        for writer in self._writers(trainer):
            if new:
                self._guard("TensorBoard", lambda: writer.add_custom_scalars(layout))  # noqa: B023
            # the writer's own interval is two minutes, as long as a small run
            self._guard("TensorBoard", writer.flush)

    @staticmethod
    def _writers(trainer: Trainer) -> list[Any]:
        if not trainer.is_global_zero:
            return []
        return [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def first_page(logged: set[str]) -> dict[str, dict[str, list[Any]]]:
    """The layout for the tags that are logged; charts and sections without any are left out."""
    page: dict[str, dict[str, list[Any]]] = {}
    for section, charts in tags.FIRST_PAGE.items():
        found = {title: tags.largest_k(name, logged) for title, name in charts.items()}
        page[section] = {title: ["Multiline", [f"^{tag}$"]] for title, tag in found.items() if tag}
    return {section: charts for section, charts in page.items() if charts}


def run_card(trainer: Trainer, module: LightningModule, recipe: str) -> str:
    """What ran, as a Markdown table: sizes, seed, parts, estimators, versions."""
    rows = [("recipe", recipe), ("seed", getattr(module, "seed", None)), ("RL steps", getattr(module, "steps", None))]
    prompts = getattr(getattr(trainer, "datamodule", None), "prompts_per_step", None)
    describe = getattr(module, "describe", None)
    if prompts and describe:
        known = describe(prompts)
        members = known.group_size
        rows.append(("completions per RL step", f"{prompts} prompts x {members} = {prompts * members}"))
        rows.append(("updates per RL step", known.updates_per_rollout))
        parts = list(known.components())
        rows += [(f"estimator of {path}", part.estimator) for path, part in parts if hasattr(part, "estimator")]
        rows += [(path, type(part).__name__) for path, part in parts]
    rows.append(("device", getattr(module, "device", "")))
    rows += [(name, _version(name)) for name in ("lit-group-rl", "torch", "lightning", "transformers")]
    rows.append(("python", platform.python_version()))
    lines = [f"| {cell(str(k))} | {cell(str(v))} |" for k, v in rows if v not in (None, "")]
    return "\n".join([lines[0], "|---|---|", *lines[1:]])


def _start(writer: Any, step: int) -> None:
    """Mark a restart: TensorBoard then forgets the points after ``step``, which the run makes anew."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    writer.file_writer.add_event(Event(step=step + 1, file_version="brain.Event:2"))
    writer.file_writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
