"""What is compared: recipes with their overlays, or folders of finished runs; and whether they may be compared."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_group_rl.cli import catalog, run_folder, strict_yaml
from lit_group_rl.cli.compose import Composed, class_of, compose, locate, options_of
from lit_group_rl.cli.precheck import check_names
from lit_group_rl.cli.refusal import COMMAND_LINE, Place, Refusal, shown
from lit_group_rl.cli.show import completed, differences

METRICS, SUMMARY = "metrics.csv", "summary.json"
DECIDED = {"seed": "--seeds", "run_root": "--out", "run_name": "--out", "resume": "the same command again"}
"""Options of a run that a comparison sets by itself -> what to give instead."""
FREE_OF_WEIGHTS = ("gradient_checkpointing", "decode_rows", "compile", "lora", "attention", "dtype")
"""Options of a policy that leave the start weights what they are; the report lists them among the differences."""


@dataclass(eq=False)
class Arm:
    """One side of a comparison: the runs of one configuration under several seeds."""

    name: str
    config: dict[str, Any]
    """All options with their defaults, for the differences."""
    words: list[str] = field(default_factory=list)
    """What ``fit`` is given; empty where only folders are read."""
    folders: dict[int, Path] = field(default_factory=dict)
    """Seed -> run folder."""

    @property
    def completions_per_step(self) -> int:
        """Prompts times group size; dynamic sampling may draw more."""
        sampler = options_of(self.config["model"]["sampler"])
        return int(sampler["group_size"]) * int(self.config["data"]["prompts_per_step"])

    @property
    def steps(self) -> int:
        """RL steps that the configuration asks for."""
        return int(self.config["steps"])


def arms_of(arguments: Sequence[str], overlays: Sequence[str], options: Sequence[str]) -> tuple[list[Arm], list[str]]:
    """The arguments as arms, and notes on what was left out."""
    arms: list[Arm] = []
    notes: list[str] = []
    for argument in arguments:
        if Path(argument).expanduser().is_dir():
            _read_folders(Path(argument).expanduser(), arms, notes)
        else:
            arms.append(_recipe(argument, overlays, options, {arm.name for arm in arms}))
    return arms, notes


def _recipe(argument: str, overlays: Sequence[str], options: Sequence[str], taken: set[str]) -> Arm:
    # a file may have a plus in its name
    own = [argument] if Path(argument).expanduser().is_file() else argument.split("+")
    if own[0] in catalog.files("configs"):
        fix = f"Give it to all with --config={own[0]}, or to one recipe as RECIPE+{own[0]}."
        raise Refusal("compare", f"'{argument}' is an overlay, not a recipe", fix)
    words = [*own, *overlays, *options]
    config = compose(words)
    check_names(config, user_code=True)
    _apply_options(config)
    full = completed(config)
    _refuse_unmeasured(argument, full)
    name = "+".join(re.sub(r"[^A-Za-z0-9._-]", "-", locate(part).stem) for part in own)
    if name in taken:
        fix = "Name each once; variants of one recipe are RECIPE+OVERLAY, or files with names of their own."
        raise Refusal("compare", f"'{name}' is given twice", fix)
    return Arm(name, full, words)


def _apply_options(config: Composed) -> None:
    """Put the values of --OPTION=VALUE into the configuration, so that it can be looked at without a parser."""
    rest, config.rest = config.rest, []
    for option in rest:
        key, equals, text = option.lstrip("-").partition("=")
        if not equals or key.endswith("+"):
            continue  # a list that grows: of the trainer, which is not compared
        value: Any = strict_yaml.value_of(text, key)
        path = key.split(".")
        for part in reversed(path):
            value = {part: value}
        config.add(value, {tuple(path): Place(COMMAND_LINE, 0)})


def _refuse_unmeasured(argument: str, config: dict[str, Any]) -> None:
    if config["model"].get("heldout") is None or not config["data"].get("heldout_size"):
        fix = "Set --model.heldout=HeldOut and a data.heldout_size above 0."
        raise Refusal("model.heldout", f"{argument} evaluates no held-out prompts, which is what is compared", fix)


def _read_folders(path: Path, arms: list[Arm], notes: list[str]) -> None:
    """A run folder, or a folder of numbered runs, which are seeds of one arm where their configurations agree."""
    single = (path / METRICS).is_file()
    folders = [path] if single else [p for p in run_folder.runs(path.parent, path.name) if (p / METRICS).is_file()]
    if not folders:
        fix = "Give runs/NAME/NNNN, or runs/NAME for all of them."
        raise Refusal("compare", f"{shown(path)} holds no {METRICS} of a run", fix)
    for folder in folders:
        _add_folder(folder.resolve(), arms, notes)


def _add_folder(folder: Path, arms: list[Arm], notes: list[str]) -> None:
    source = folder / run_folder.CONFIG
    if not source.is_file():
        fix = "Every run of lit-group-rl fit has one; give such a folder."
        raise Refusal("compare", f"{shown(folder)} has no {run_folder.CONFIG}", fix)
    config = completed(compose([str(source)]))
    summary = _summary(folder)
    # the runs that a comparison makes are named with their seed
    name = re.sub(r"-seed\d+$", "", str(summary.get("recipe") or folder.parent.name))
    seed = int(config.get("seed", 1))
    same = [arm for arm in arms if arm.folders and not _settings_differ(arm.config, config)]
    arm = next((arm for arm in same if arm.name.partition("/")[0] == name), None)
    if arm is None:
        taken = {other.name for other in arms}
        arm = Arm(name if name not in taken else f"{name}/{folder.name}", config)
        if arm.name in taken:
            arm.name = f"{shown(folder)}"
        arms.append(arm)
    if seed in arm.folders:
        older, newer = sorted((arm.folders[seed], folder), key=lambda p: p.name)
        notes.append(f"{arm.name}, seed {seed}: {shown(older)} has the same settings as {shown(newer)}, which counts")
        folder = newer
    arm.folders[seed] = folder


def _settings_differ(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return any(old.get(key) != new.get(key) for key in ("steps", "model", "data"))


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / SUMMARY).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def is_finished(folder: Path, steps: int, completions: int) -> bool:
    """Whether a run came to its end: all RL steps, or the budget in completions."""
    summary = _summary(folder)
    return (summary.get("rl_steps") or 0) >= steps or (summary.get("completions") or 0) >= completions


def steps_for(arm: Arm, completions: int) -> int:
    """RL steps in which an arm draws at least so many completions."""
    return math.ceil(completions / arm.completions_per_step)


def unlike(first: Arm, other: Arm) -> list[str]:
    """In what task, data and start weights of two arms differ, as 'option: a in FIRST, b in OTHER'."""
    rows = differences(_common(first.config), _common(other.config))
    return [f"{path}: {old} in {first.name}, {new} in {other.name}" for path, old, new in rows]


def _common(config: dict[str, Any]) -> dict[str, Any]:
    model, data = config["model"], config["data"]
    policy = model["policy"]
    kept = {k: v for k, v in options_of(policy).items() if k not in FREE_OF_WEIGHTS}
    first = next(iter(model["rewards"].values()))
    solved = {k: v for k, v in options_of(first).items() if k != "weight"}
    return {
        "model": {
            "policy": {"class_path": class_of(policy), "init_args": kept},
            "sampler": {"max_new_tokens": options_of(model["sampler"]).get("max_new_tokens")},
            "rewards": {"first": {"class_path": class_of(first), "init_args": solved}},
        },
        "data": {"source": data["source"], "heldout_size": data["heldout_size"]},
    }


def check_alike(arms: Sequence[Arm]) -> list[str]:
    """Refuse recipes whose difference would not be the algorithm's; of finished runs it can only be said."""
    said = []
    for other in arms[1:]:
        found = unlike(arms[0], other)
        if found and arms[0].words and other.words:
            option = found[0].partition(":")[0]
            fix = (
                "Compare recipes with the same task, data and start weights; an overlay for all (--config=FILE) or "
                "an option (--OPTION=VALUE) makes them the same."
            )
            raise Refusal(option, found[0].partition(": ")[2] + _more(found), fix)
        if found:
            said.append(f"not the same task, data or start weights: {'; '.join(found)}")
    return said


def _more(found: list[str]) -> str:
    return f", and {len(found) - 1} more such differences" if len(found) > 1 else ""


def algorithm_differences(first: Arm, other: Arm) -> list[tuple[str, str, str]]:
    """What ``other`` does differently, slot by slot; length of the run, seed and folders are not part of it."""
    keep = ("model", "data")
    rows = differences({k: first.config[k] for k in keep}, {k: other.config[k] for k in keep})
    return [row for row in rows if not _one_name(row[1], row[2])]


def _one_name(old: str, new: str) -> bool:
    """Whether two words are one name, short as in a recipe and with its module as in the config.yaml of a run."""
    if not all(re.fullmatch(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*", word) for word in (old, new)):
        return False
    return old.endswith(f".{new}") or new.endswith(f".{old}")
