"""Prompts from a data set of the Hugging Face hub, or from a folder."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_group_rl.data.columns import ColumnSource
from lit_group_rl.data.readers import READERS, Row, read_rows
from lit_group_rl.types import RecipeError


@dataclass(frozen=True, kw_only=True)
class HFDataset(ColumnSource):
    """A data set by hub name or folder (extra ``datasets``).  No code of the data set is run."""

    name: str
    """Name on the hub (``openai/gsm8k``), or a folder: with a file per split, or written by ``save_to_disk``."""
    config: str | None = None
    """Configuration of the data set, if it has several (``main``)."""
    split: str = "train"
    """Split to train on."""
    heldout_split: str | None = None
    """Split that is held out; null takes data.heldout_size prompts out of ``split``."""
    revision: str | None = None
    """Commit on the hub, to have the same data later."""

    @property
    def whence(self) -> str:
        return self.name

    def rows(self) -> tuple[Iterable[Row], Iterable[Row] | None]:
        heldout = None if self.heldout_split is None else self._rows(self.heldout_split)
        return self._rows(self.split), heldout

    def _rows(self, split: str) -> Iterator[Row]:
        # read here, because datasets tells neither file nor line of a bad row, and such a folder has no configurations
        for suffix in READERS:
            file = Path(self.name).expanduser() / f"{split}{suffix}"
            if file.is_file():
                return read_rows(file)
        data = self._load(split)
        return ((f"{self.name} {split} row {i}", row) for i, row in enumerate(data, 1))

    def _load(self, split: str) -> Any:
        try:
            import datasets
        except ImportError:
            raise RecipeError(
                "data.source: HFDataset needs the package datasets. "
                "Install it with: pip install 'lit-group-rl[datasets]'"
            ) from None
        try:
            folder = Path(self.name)
            if not any((folder / mark).is_file() for mark in ("state.json", "dataset_dict.json")):
                return datasets.load_dataset(self.name, self.config, split=split, revision=self.revision)
            saved = datasets.load_from_disk(self.name)
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__  # type: ignore[assignment]
            raise RecipeError(
                f"data.source.name: cannot load {self.name!r}, split {split!r}: "
                f"{type(error).__name__}: {str(error).rstrip('.') or 'no rows'}. "
                "Check name, config and split; a machine without network needs a folder"
            ) from None
        if isinstance(saved, datasets.DatasetDict):
            if split not in saved:
                close = difflib.get_close_matches(split, saved, n=1)
                raise RecipeError(
                    f"data.source: {self.name} has no split {split!r}, only {', '.join(saved)}."
                    + (f" Did you mean {close[0]!r}?" if close else " Set data.source.split")
                )
            return saved[split]
        if split != "train":
            raise RecipeError(
                f"data.source: the folder {self.name} holds one split, so {split!r} cannot be chosen. "
                "Set split to train and heldout_split to null"
            )
        return saved
