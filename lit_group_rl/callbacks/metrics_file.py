"""metrics.csv: every number of every RL step, also over interruptions."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only  # type: ignore[attr-defined]

from lit_group_rl.callbacks.base import write_atomic

FILE = "metrics.csv"


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """RL step -> metrics of a metrics.csv; empty if there is none.  A last line cut by a crash is left out."""
    rows: dict[int, dict[str, float]] = {}
    if not path.is_file():
        return rows
    whole = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    for row in csv.DictReader(whole.splitlines()):
        try:
            # "" is a number not logged at that step, None a cell missing in a damaged row
            values = {k: float(v) for k, v in row.items() if v != ""}
            rows.setdefault(int(values.pop("step")), {}).update(values)
        except (KeyError, ValueError, TypeError):
            continue
    return rows


class MetricsFile(Logger):
    """Writes metrics.csv into the run folder, a row per RL step, on disk as soon as it is known.

    Lightning's CSVLogger deletes the file of a folder that it opens again.  This one goes on where the resumed
    checkpoint stands: rows of that step and later are dropped, because the run makes them anew.
    """

    def __init__(self, run_dir: str | Path) -> None:
        super().__init__()
        self._path = Path(run_dir) / FILE
        self._rows: dict[int, dict[str, float]] | None = None
        self._columns: list[str] = []
        self._on_disk = False

    @property
    def name(self) -> str:
        """Empty: the run folder is the whole place."""
        return ""

    @property
    def version(self) -> str:
        """Empty: the run folder is the whole place."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run folder."""
        return str(self._path.parent)

    @property
    def log_dir(self) -> str:
        """The run folder."""
        return str(self._path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add a row, or more cells to the row of the same step."""
        step = 0 if step is None else step
        if self._rows is None:
            self._rows = {s: row for s, row in read_metrics(self._path).items() if s < step}
            self._columns = sorted({k for row in self._rows.values() for k in row})
        new = step not in self._rows
        row = self._rows.setdefault(step, {})
        row.update({k: float(v) for k, v in metrics.items()})
        added = [k for k in sorted(row) if k not in self._columns]
        self._columns += added
        if self._on_disk and new and not added:
            try:
                with open(self._path, "a", newline="", encoding="utf-8") as file:
                    file.write(self._text([step]))
            except OSError:
                # the tail may be half a line: the next row writes the whole file again
                self._on_disk = False
                raise
        else:
            self._write_all()

    def _write_all(self) -> None:
        assert self._rows is not None
        self._on_disk = False
        self._path.parent.mkdir(parents=True, exist_ok=True)
        header = ",".join(["step", *self._columns])
        write_atomic(self._path, f"{header}\n" + self._text(sorted(self._rows)))
        self._on_disk = True

    def _text(self, steps: list[int]) -> str:
        assert self._rows is not None
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for step in steps:
            row = self._rows[step]
            writer.writerow([step, *(repr(row[k]) if k in row else "" for k in self._columns)])
        return out.getvalue()
