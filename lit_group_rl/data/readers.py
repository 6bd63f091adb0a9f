"""Rows of a file, each with its place.  A row that cannot be read is a message, so that the caller may skip it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lit_group_rl.types import RecipeError

Row = tuple[str, dict[str, Any] | str]
"""(place, columns), or (place, what is wrong)."""


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of a JSONL, JSON, CSV or Parquet file, told apart by suffix."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise RecipeError(
            f"data.source.path: {path} has the suffix {path.suffix or '(none)'}. Give one of {', '.join(READERS)}"
        )
    if not path.is_file():
        raise RecipeError(f"data.source.path: there is no file {path} (looked from {Path.cwd()}). Correct the path")
    return reader(path)


def read_jsonl(path: Path) -> Iterator[Row]:
    """One object a line; blank lines and a byte order mark are fine, a key given twice is not."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not raw.strip():
                continue
            place = f"{path.name} line {number}"
            try:
                value = json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
            except UnicodeDecodeError as error:
                yield place, f"not UTF-8: byte 0x{raw[error.start]:02x} at column {error.start + 1}. {_SAVE}"
            except json.JSONDecodeError as error:
                yield place, f"not JSON, column {error.colno}: {error.msg}: {_short(error.doc)}. Correct the line"
            except _Twice as error:
                yield place, f"the key {error} stands there twice. Remove one"
            except RecursionError:
                yield place, "nested too deeply to read. Flatten it"
            else:
                yield place, value if isinstance(value, dict) else _no_object(value)


def read_json(path: Path) -> Iterator[Row]:
    """One array of objects."""
    try:
        values = json.loads(_text(path), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        lines = error.msg == "Extra data"
        fix = "A file with one object a line must be named .jsonl" if lines else "Correct it"
        raise RecipeError(
            f"data.source: {path} is not JSON, line {error.lineno} column {error.colno}: {error.msg}. {fix}"
        ) from None
    except _Twice as error:
        raise RecipeError(f"data.source: {path}: the key {error} stands twice in one object. Remove one") from None
    if not isinstance(values, list):
        raise RecipeError(
            f"data.source: {path} holds {type(values).__name__} where an array of objects is due. "
            "Write [{...}, {...}], or one object a line in a .jsonl file"
        )
    for number, value in enumerate(values, 1):
        yield f"{path.name} item {number}", value if isinstance(value, dict) else _no_object(value)


def read_csv(path: Path) -> Iterator[Row]:
    """Comma-separated, the first line names the columns; fields may span lines in quotes."""
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    names = list(reader.fieldnames or ())
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(f"data.source: {path} line 1: the column {name!r} stands there twice. Rename one")
    try:
        for row in reader:
            place = f"{path.name} line {reader.line_num}"
            if None in row or None in row.values():
                found = len(names) + len(row[None]) if None in row else sum(v is not None for v in row.values())
                yield place, f"{found} fields where {len(names)} are due. Quote commas inside a field"
            else:
                yield place, dict(row)
    except csv.Error as error:
        raise RecipeError(f"data.source: {path} line {reader.line_num}: {error}. Correct the quotes") from None


def read_parquet(path: Path) -> Iterator[Row]:
    """Parquet, through pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise RecipeError(
            f"data.source: {path.name} needs pyarrow. Install it with: pip install 'lit-group-rl[datasets]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            start = 1
            for batch in file.iter_batches():
                for number, row in enumerate(batch.to_pylist(), start):
                    yield f"{path.name} row {number}", row
                start += len(batch)
    except pyarrow.ArrowException as error:
        raise RecipeError(f"data.source: {path} is not a readable Parquet file: {error}. Replace it") from None


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
}

_SAVE = "Save the file as UTF-8"


class _Twice(Exception):
    def __str__(self) -> str:
        return repr(self.args[0])


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise _Twice(key)
        out[key] = value
    return out


def _text(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RecipeError(
            f"data.source: {path} line {line}: not UTF-8: byte 0x{raw[error.start]:02x}. {_SAVE}"
        ) from None


def _no_object(value: object) -> str:
    return f'{type(value).__name__} where an object is due: {_short(value)}. Write {{"column": value, ...}}'


def _short(value: object, limit: int = 80) -> str:
    text = str(value).strip()
    return ascii(text if len(text) <= limit else text[:limit] + "...")
