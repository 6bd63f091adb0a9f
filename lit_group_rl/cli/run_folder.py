"""``<run_root>/<run_name>/<NNNN>``: one folder per run, numbered; a resumed run keeps its own."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from lit_group_rl.cli.refusal import Refusal, shown

ENVIRONMENT = "LIT_GROUP_RL_RUN_FOLDER"
"""By which the first process tells those it starts; Lightning starts them with its environment."""
CONFIG = "config.yaml"
_NUMBER = re.compile(r"\d{4,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SECRET = re.compile(
    r"(^|_)(token|secret|password|passwd|api_?key|access_?key|private_?key|credentials?)$", re.IGNORECASE
)


def runs(root: Path, name: str) -> list[Path]:
    """The runs of a recipe, oldest first."""
    home = root / name
    found = [p for p in home.iterdir() if p.is_dir() and _NUMBER.fullmatch(p.name)] if home.is_dir() else []
    return sorted(found, key=lambda p: int(p.name))


def checked_name(name: str) -> str:
    """A run name that cannot leave the run root."""
    if not _NAME.fullmatch(name):
        fix = "Use letters, digits, '.', '_' and '-', a letter or digit first."
        raise Refusal("run_name", f"'{name}' cannot name a folder", fix)
    return name


def new_run(root: Path, name: str, rank: int = 0) -> Path:
    """Make and return the next folder; only the first process makes one, the others are told or write nothing."""
    checked_name(name)
    if rank:
        return Path(os.environ.get(ENVIRONMENT, root / name / "0000"))
    existing = runs(root, name)
    number = int(existing[-1].name) + 1 if existing else 1
    while True:
        folder = root / name / f"{number:04d}"
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            number += 1  # another run has just taken it
        except OSError as error:
            raise Refusal("run_root", f"{shown(folder)} cannot be made: {error.strerror}", "Set --run_root.") from None
    os.environ[ENVIRONMENT] = str(folder.resolve())
    return folder


def remove_empty(folder: Path, root: Path) -> None:
    """Take back a folder in which nothing was begun."""
    for path in (folder, folder.parent, root):
        with contextlib.suppress(OSError):
            path.rmdir()


def find_run(resume: str, root: Path, name: str) -> Path | None:
    """The run that ``resume`` means: a path, a number of this recipe, or 'auto' for the newest with a checkpoint."""
    candidates = [p for p in runs(root, checked_name(name)) if has_checkpoint(p)]
    if resume == "auto":
        return candidates[-1] if candidates else None
    path = Path(resume).expanduser()
    if not path.is_dir() and re.fullmatch(r"\d+", resume):
        path = root / name / f"{int(resume):04d}"
    for folder in (path, *path.parents):
        if has_checkpoint(folder):
            return folder
    known = f"Runs with one: {', '.join(shown(p) for p in candidates[-5:])}." if candidates else ""
    what = "holds no checkpoint" if path.exists() else "does not exist"
    raise Refusal("resume", f"{shown(path)} {what}", known or f"No run of {name} has one yet.")


def has_checkpoint(folder: Path) -> bool:
    """Whether a run can be continued."""
    checkpoints = folder / "checkpoints"
    return checkpoints.is_dir() and any(checkpoints.glob("step_*"))


def save_config(folder: Path, text: str) -> Path:
    """Write the resolved configuration; a resumed run with another one keeps the earlier file."""
    path = folder / CONFIG
    number = 1
    while path.exists() and path.read_text(encoding="utf-8") != text:
        number += 1
        path = folder / f"config.{number}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def masked(values: Any) -> Any:
    """Without the values of keys that are named like secrets."""
    if isinstance(values, dict):
        return {
            k: "***" if v is not None and not isinstance(v, dict) and _SECRET.search(str(k)) else masked(v)
            for k, v in values.items()
        }
    return [masked(v) for v in values] if isinstance(values, list) else values
