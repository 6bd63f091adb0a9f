"""What callbacks get from a run, and how they write without endangering it."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class RunCallback(Callback):
    """A callback that sees the metrics of every RL step."""

    def on_metrics(self, trainer: Trainer, module: LightningModule, step: int, metrics: dict[str, float]) -> None:
        """Called on every process after ``step`` finished RL steps, with held-out numbers when they were due."""


class Guard:
    """Runs what may fail without taking the run down.

    The first failure of a writer is told; after ``limit`` failures in a row the writer is left alone, so that a disk
    that is full for a moment costs a few entries and a dead server does not cost a timeout at every step.
    """

    def __init__(self, limit: int = 3) -> None:
        self.limit = limit
        self.failures: Counter[str] = Counter()

    def __call__(self, writer: str, action: Callable[[], Any]) -> bool:
        """Run ``action`` for ``writer``; False if it failed or is no longer tried."""
        if self.failures[writer] >= self.limit:
            return False
        try:
            action()
        # a logger may raise anything; Exception leaves Ctrl-C and SIGTERM alone
        except Exception as error:
            self.failures[writer] += 1
            if self.failures[writer] in (1, self.limit):
                end = "it is not tried again" if self.failures[writer] == self.limit else "training goes on"
                warnings.warn(f"{writer} could not write ({type(error).__name__}: {error}); {end}", stacklevel=2)
            return False
        self.failures[writer] = 0
        return True


def write_atomic(path: Path, text: str) -> None:
    """Replace a file in one move, so that a reader never sees half of it and a full disk keeps the old one."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of a .jsonl file that belong to RL steps after ``step``, which a resumed run makes anew."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except ValueError:  # cut by a crash
            continue
    write_atomic(path, "".join(kept))


def to_json(value: Any) -> str:
    """One line of strict JSON: NaN and infinity become null, lone surrogates stay as escapes."""
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and value - value != 0:
        return None
    return value
