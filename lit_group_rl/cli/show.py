"""``ls``, ``cat`` and ``diff``: the recipes and components as text, without torch."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compose import Composed, class_of, compose, is_component, locate, options_of
from lit_group_rl.cli.precheck import TOP, check_names
from lit_group_rl.cli.refusal import Refusal, closest, suggest


def ls(argv: Sequence[str]) -> int:
    """Everything, one kind, one slot, or one class."""
    topic = argv[0] if argv else ""
    if len(argv) > 1:
        raise Refusal("ls", "takes one topic", "For example lit-group-rl ls advantage.")
    if topic in ("recipes", "configs"):
        _print_files(topic)
    elif topic in catalog.slots():
        _print_slot(topic)
    elif catalog.entry(topic) or catalog.foreign(topic, Path.cwd()):
        _print_class(topic)
    elif topic:
        known = ["recipes", "configs", *catalog.slots()]
        components = [name for slot in catalog.slots() for name in catalog.names(slot)]
        near = closest(topic, [*known, *components])
        fix = f"Did you mean '{near}'? Known: {', '.join(known)}." if near in components else suggest(topic, known)
        raise Refusal("ls", f"'{topic}' is neither a kind, a slot nor a class", fix)
    else:
        print("RECIPES    lit-group-rl fit NAME")
        _print_files("recipes")
        print("\nOVERLAYS   lit-group-rl fit RECIPE NAME...")
        _print_files("configs")
        print("\nSLOTS      lit-group-rl ls SLOT, lit-group-rl ls CLASS")
        _columns([(slot, ", ".join(catalog.names(slot)) or "none yet") for slot in catalog.slots()])
    return 0


def cat(argv: Sequence[str]) -> int:
    """A file as it stands, or with --resolved all that it resolves to."""
    names = [a for a in argv if a != "--resolved"]
    if not names:
        raise Refusal("cat", "needs a name", "For example lit-group-rl cat grpo. Names: lit-group-rl ls.")
    if "--resolved" in argv:
        from lit_group_rl.cli.run import resolved

        print(resolved(names), end="")
        return 0
    if len(names) > 1:
        raise Refusal("cat", "prints one file at a time", "Add --resolved to see several merged.")
    if catalog.entry(names[0]):
        return ls(names)
    print(locate(names[0]).read_text(encoding="utf-8"), end="")
    return 0


def diff(argv: Sequence[str]) -> int:
    """What B does differently from A; a default that is written out is no difference."""
    if len(argv) != 2:
        raise Refusal("diff", f"compares two recipes, got {len(argv)}", "For example lit-group-rl diff grpo dapo.")
    rows = differences(completed(compose([argv[0]])), completed(compose([argv[1]])))
    if not rows:
        print(f"{argv[0]} and {argv[1]} do the same: no difference in any slot or option.")
        return 0
    width = max(len(key) for key, _, _ in rows)
    for key, old, new in rows:
        print(f"{key:<{width}}  {old} -> {new}")
    return 0


def completed(config: Composed) -> dict[str, Any]:
    """A recipe with the defaults of its classes filled in, components as (class, options)."""
    check_names(config, complete=False)
    values = dict(config.values)
    for root, owner in catalog.ROOTS.items():
        values[root] = _fill(owner, values.get(root) or {})
    return values


def _fill(owner: str, given: dict[str, Any]) -> dict[str, Any]:
    entry = catalog.find(owner)
    options = entry.options if entry else {}
    # a missing slot and an empty one are the same
    defaults = {k: o.default for k, o in options.items() if o.default is not catalog.REQUIRED}
    return {key: _normal(value) for key, value in (defaults | given).items()}


def _normal(value: Any) -> Any:
    if is_component(value) and (catalog.find(class_of(value)) or isinstance(value, dict)):
        name = class_of(value)
        known = catalog.find(name)
        return {"class_path": known.name if known else name, "init_args": _fill(name, options_of(value))}
    if isinstance(value, dict):
        return {k: _normal(v) for k, v in value.items()} or None
    return value


def differences(old: Any, new: Any, path: str = "") -> list[tuple[str, str, str]]:
    """(path, value in old, value in new) wherever they differ, in the order of ``old``."""
    if old == new:
        return []
    if is_component(old) and is_component(new) and isinstance(old, dict) and isinstance(new, dict):
        if class_of(old) == class_of(new):
            return differences(options_of(old), options_of(new), path)
    elif isinstance(old, dict) and isinstance(new, dict):
        rows = []
        for key in [*old, *(k for k in new if k not in old)]:
            rows += differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
        return rows
    elif isinstance(old, dict) and new is None and not is_component(old):
        return [r for k, v in old.items() for r in differences(v, None, f"{path}.{k}")]
    elif isinstance(new, dict) and old is None and not is_component(new):
        return [r for k, v in new.items() for r in differences(None, v, f"{path}.{k}")]
    return [(path, describe(old), describe(new))]


def describe(value: Any) -> str:
    """A value in one line; of a component only what differs from its defaults."""
    if value is None:
        return "none"
    if not isinstance(value, dict) or not is_component(value):
        return str(value)
    entry = catalog.find(class_of(value))
    defaults = {k: _normal(o.default) for k, o in entry.options.items()} if entry else {}
    own = {k: v for k, v in options_of(value).items() if k not in defaults or defaults[k] != v}
    name = entry.name if entry else class_of(value)
    return f"{name}({', '.join(f'{k}={describe(v)}' for k, v in own.items())})" if own else name


def help_of(command: str) -> str:
    """Help of a command that takes a recipe, from the catalog alone."""
    from lit_group_rl.cli.main import COMMANDS

    arguments, what, _ = COMMANDS[command]
    lines = [
        f"usage: lit-group-rl {command} {arguments}",
        "",
        f"  {what}",
        "",
        "A recipe or overlay is a name of `lit-group-rl ls` or a file; later files change earlier ones, options change",
        "both: --model.sampler.group_size=16, --model.clip_policy=NoClip, --model.critic=null.",
        "",
        *(f"  --{key:<28}{text}" for key, text in TOP.items() if key not in ("model", "data", "trainer")),
    ]
    for root, owner in catalog.ROOTS.items():
        entry = catalog.entry(owner)
        for option in entry.options.values() if entry else ():
            if option.name not in ("steps", "seed"):
                lines.append(f"  --{f'{root}.{option.name}':<28}{option.doc or option.annotation}")
    lines += [
        f"  --{'trainer.OPTION':<28}any option of Lightning's Trainer: devices, strategy, precision, callbacks, ...",
        "",
        "  what fits a slot: lit-group-rl ls SLOT      options of a component: lit-group-rl ls CLASS",
    ]
    return "\n".join(lines)


def _print_files(kind: str) -> None:
    found = catalog.files(kind)
    _columns([(name, catalog.header(path)) for name, path in found.items()] or [("none", "")])


def _print_slot(slot: str) -> None:
    names = catalog.names(slot)
    entries = [e for e in map(catalog.entry, names) if e]
    base = catalog.entry(catalog.slots()[slot])
    print(f"{slot}: {base.doc if base else ''}")
    _columns([(e.name, e.doc) for e in entries] or [("none yet", "")])
    print("options: lit-group-rl ls CLASS")


def _print_class(name: str) -> None:
    entry = catalog.entry(name) or catalog.foreign(name, Path.cwd())
    assert entry is not None
    fits = ", ".join(catalog.slots_of(name))
    print(f"{entry.name}: {entry.doc}\n  {entry.path}" + (f", fits: {fits}" if fits else ""))
    rows = []
    for option in entry.options.values():
        default = "required" if option.default is catalog.REQUIRED else f"= {_yaml(option.default)}"
        rows.append((f"{option.name} {default}", option.doc or option.annotation))
    _columns(rows or [("no options", "")])


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _columns(rows: list[tuple[str, str]]) -> None:
    """Two columns, the second wrapped to the terminal."""
    left = max(len(a) for a, _ in rows)
    width = max(shutil.get_terminal_size((120, 24)).columns - left - 4, 30)
    for a, b in rows:
        for i, line in enumerate(textwrap.wrap(b, width) or [""]):
            print(f"  {a if i == 0 else '':<{left}}  {line}".rstrip())
