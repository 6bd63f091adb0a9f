"""What a resumed run's configuration says otherwise than the run began with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.refusal import Refusal, shown

FREE = ("trainer", "steps", "run_root", "run_name", "model.heldout", "model.micro_batch_tokens")
"""What a resumed run may change without a word: how long, where, how fast, how it is watched."""
PACE = ("model.learning_rate", "model.optimizer", "model.max_grad_norm", "model.update_schedule")
"""What it may change and is told: how the objective is pursued, not what it is."""
SPEED = re.compile(r"model\.policy\.(decode_rows|gradient_checkpointing|attention|compile)")


def refuse_changes(run: Path, resolved: str, allowed: bool) -> list[str]:
    """Differences worth a note; raises Refusal where the objective is another one and that is not allowed."""
    old_file = _latest(run)
    if old_file is None:
        return []
    old, new = (_flat(yaml.safe_load(text)) for text in (old_file.read_text(encoding="utf-8"), resolved))
    # an option that is not in the old file at all may be younger than the run
    keys = [k for k in {**old, **new} if k in old or k.endswith("class_path")]
    changed = {k: f"{old.get(k)} -> {new.get(k)}" for k in keys if old.get(k) != new.get(k)}
    told = {_spoken(k): v for k, v in changed.items() if not _within(_spoken(k), FREE) and not SPEED.match(_spoken(k))}
    other = {k: v for k, v in told.items() if not _within(k, PACE)}
    if other and not allowed:
        first = next(iter(other))
        listed = "; ".join(f"{k}: {v}" for k, v in list(other.items())[:4])
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        raise Refusal(
            first,
            f"is not what the resumed run trains with ({shown(old_file)}): {listed}{more}",
            "Leave it as it was, start a new run, or set --allow_changes=true.",
        )
    return [f"resume: {k} changed: {v}" for k, v in told.items()]


def _latest(run: Path) -> Path | None:
    """The configuration the run was last given."""
    path, number = run / run_folder.CONFIG, 1
    if not path.is_file():
        return None
    while (run / f"config.{number + 1}.yaml").is_file():
        number += 1
        path = run / f"config.{number}.yaml"
    return path


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, dict) or not node:
        return {path: node}
    return {k: v for key, inner in node.items() for k, v in _flat(inner, f"{path}.{key}".lstrip(".")).items()}


def _spoken(path: str) -> str:
    return ".".join(p for p in path.split(".") if p not in ("class_path", "init_args"))


def _within(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}.") for root in roots)
