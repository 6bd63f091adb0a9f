"""Components of the user's own: where their modules are looked for, and what was probably meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lit_group_rl.cli.compose import Composed
from lit_group_rl.cli.refusal import closest

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
LIMIT = 300
"""Files that are read at most to find what was meant."""


def make_importable(config: Composed) -> None:
    """Put the working folder on the import path, and for modules that are not in it the folder of a recipe.

    A recipe, or the config.yaml of a run, that names ``my_parts.x.Y`` then works from any folder, if my_parts lies in
    its folder or in one above it.
    """
    if str(config.folder) not in sys.path:
        sys.path.insert(0, str(config.folder))
    files = {Path(place.file).resolve() for place in config.places.values() if place.line}
    folders = dict.fromkeys(folder for file in sorted(files) for folder in file.parents)
    for module in dict.fromkeys(_modules(config.values)):
        if not _found(module):
            home = next((f for f in folders if (f / module).is_dir() or (f / f"{module}.py").is_file()), None)
            if home is not None:
                sys.path.append(str(home))


def _modules(values: Any) -> Iterator[str]:
    """First parts of all dotted names in a configuration."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _modules(value)
    elif isinstance(values, str) and _DOTTED.fullmatch(values):
        yield values.partition(".")[0]


def _found(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def meant(class_path: str, here: Path) -> str | None:
    """The class below the folder ``here`` that was probably meant by a dotted path."""
    known: dict[str, None] = {}
    for path in [p for pattern in ("*.py", "*/*.py", "*/*/*.py") for p in sorted(here.glob(pattern))][:LIMIT]:
        module = ".".join(path.relative_to(here).with_suffix("").parts)
        if _DOTTED.fullmatch(f"{module}.x"):
            names = _CLASS.findall(path.read_text(encoding="utf-8", errors="replace"))
            known |= dict.fromkeys(f"{module}.{name}" for name in names)
    return closest(class_path, known)
