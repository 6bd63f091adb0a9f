"""Prompts from a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lit_group_rl.data.columns import ColumnSource
from lit_group_rl.data.readers import Row, read_rows


@dataclass(frozen=True, kw_only=True)
class Table(ColumnSource):
    """A JSONL, JSON, CSV or Parquet file (Parquet: extra ``datasets``)."""

    path: str
    """The file, from the working folder."""
    heldout_path: str | None = None
    """File with the held-out rows; null takes data.heldout_size prompts out of ``path``."""

    @property
    def whence(self) -> str:
        return self.path

    def rows(self) -> tuple[Iterable[Row], Iterable[Row] | None]:
        heldout = None if self.heldout_path is None else read_rows(Path(self.heldout_path).expanduser())
        return read_rows(Path(self.path).expanduser()), heldout
