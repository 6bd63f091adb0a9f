"""Recipe, overlays and class changes of the command line merged into one configuration; nothing is carried over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_group_rl.cli import catalog, strict_yaml
from lit_group_rl.cli.refusal import COMMAND_LINE, Place, Refusal, suggest

_OURS = ("lit_group_rl.", "torch.", "lightning.")
_CLASS_NAME = re.compile(r"(?:\w+\.)*[A-Z]\w*")


@dataclass
class Composed:
    """A merged configuration and where it comes from."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    """'model.clip_policy.low' -> the line that set it; class_path and init_args are left out of paths."""
    notices: list[str] = field(default_factory=list)
    """One line for each class change that dropped options."""
    name: str = "run"
    """The recipe's name: that of its first file."""
    rest: list[str] = field(default_factory=list)
    """Command-line options that are still to be applied."""
    folder: Path = field(default_factory=Path.cwd)
    """Where the command was given; the parser works in another one."""

    def options(self) -> set[str]:
        """Names of the command-line options that are still to be applied."""
        return {option.lstrip("-").partition("=")[0].removesuffix("+") for option in self.rest}

    def place(self, path: str) -> Place | None:
        """The line that set a key, or the nearest key above it."""
        if any(path == option or path.startswith(f"{option}.") for option in self.options()):
            return Place(COMMAND_LINE, 0)
        while path:
            if path in self.places:
                return self.places[path]
            path = path.rpartition(".")[0]
        return None

    def at(self, path: str) -> Any:
        """The value at a dotted path, through components; KeyError if there is none."""
        value: Any = self.values
        for key in path.split("."):
            if is_component(value) and key not in ("class_path", "init_args"):
                value = value.get("init_args") or {} if isinstance(value, dict) else {}
            if not isinstance(value, dict):
                raise KeyError(path)
            value = value[key]
        return value

    def add(self, values: dict[str, Any], places: strict_yaml.Places) -> None:
        """Merge a further file."""
        self.values = self._merge(self.values, values, (), places)

    def _merge(self, old: Any, new: Any, path: tuple[str, ...], places: strict_yaml.Places) -> Any:
        """``new`` over ``old``; ``path`` is the position in the new file."""
        if is_component(new) and not (is_component(old) and _same(old, new)):
            dropped = options_of(old) if is_component(old) else {}
            if dropped:
                change = f"{_dotted(path)}: {class_of(old)} -> {class_of(new)} drops "
                place = next((places[p] for p in (path, path[:-1]) if p in places), None)
                lost = ", ".join(f"{k}={_short(v)}" for k, v in dropped.items())
                self.notices.append(change + lost + (f" ({place})" if place else ""))
            old = None
        elif is_component(old) and isinstance(new, dict):
            wrapped = "class_path" in new or "init_args" in new
            options, at = ((new.get("init_args") or {}), (*path, "init_args")) if wrapped else (new, path)
            inner = self._merge(dict(options_of(old)), options, at, places)
            self._note(path, places)
            kept = new if wrapped else {}
            return {**kept, "class_path": new.get("class_path") or class_of(old), "init_args": inner}
        elif is_component(old) and is_component(new):
            self._note(path, places)
            return {"class_path": class_of(new), "init_args": options_of(old)}
        if isinstance(old, dict) and isinstance(new, dict):
            self._note(path, places)
            merged = dict(old)
            for key, value in new.items():
                merged[key] = self._merge(old.get(key), value, (*path, key), places)
            return merged
        self._forget(path)
        self._note(path, places)
        if isinstance(new, dict):
            return {k: self._merge(None, v, (*path, k), places) for k, v in new.items()}
        return new

    def _forget(self, path: tuple[str, ...]) -> None:
        """Places of the keys below one that is replaced."""
        start = _dotted(path) + "."
        for key in [k for k in self.places if k.startswith(start)]:
            del self.places[key]

    def _note(self, path: tuple[str, ...], places: strict_yaml.Places) -> None:
        if path in places and path[-1] != "init_args":
            self.places[_dotted(path)] = places[path]


def is_component(value: Any) -> bool:
    """A class with options, or a bare class name."""
    if isinstance(value, dict):
        return "class_path" in value
    return isinstance(value, str) and _CLASS_NAME.fullmatch(value) is not None


def class_of(value: Any) -> str:
    """The class that a component names."""
    return str(value["class_path"] if isinstance(value, dict) else value)


def options_of(value: Any) -> dict[str, Any]:
    """The options that a component sets."""
    return (value.get("init_args") or {}) if isinstance(value, dict) else {}


def _same(old: Any, new: Any) -> bool:
    """The same class under two spellings: a bare name is the class of this name in a package we know."""
    a, b = class_of(old), class_of(new)
    known = all("." not in name or name.startswith(_OURS) for name in (a, b))
    return a == b or (known and a.rsplit(".", 1)[-1] == b.rsplit(".", 1)[-1])


def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(p for p in path if p not in ("class_path", "init_args"))


def _short(value: Any) -> str:
    return class_of(value) if is_component(value) else str(value)


def locate(name: str) -> Path:
    """The file that a name or path means: an existing file, a recipe, or an overlay."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    plain = name.removesuffix(".yaml").removesuffix(".yml")
    for kind in ("recipes", "configs"):
        found = catalog.files(kind).get(plain.removeprefix(f"{kind}/"))
        if found:
            return found
    known = [*catalog.files("recipes"), *catalog.files("configs")]
    raise Refusal("recipe", f"'{name}' is neither a file, a recipe nor an overlay", suggest(plain, known))


def compose(argv: Sequence[str]) -> Composed:
    """Read ``NAME... [--config FILE]... [options]``: files in order, then class changes among the options."""
    names, options = split(argv)
    result = Composed()
    for position, name in enumerate(names):
        path = locate(name)
        if position == 0:
            result.name = path.stem
        result.add(*strict_yaml.load(path))
    for key, text in options:
        if not _change_class(result, key, text):
            result.rest += [f"--{key}"] if text is None else [f"--{key}={text}"]
    for root in catalog.ROOTS:
        for slot in catalog.dict_slots():
            _drop_emptied(result.values.get(root), slot)
    return result


def _drop_emptied(owner: Any, slot: str) -> None:
    """``rewards: {exact: null}`` in an overlay takes that reward out."""
    if isinstance(owner, dict) and isinstance(owner.get(slot), dict) and not is_component(owner[slot]):
        owner[slot] = {name: part for name, part in owner[slot].items() if part is not None}


def split(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str | None]]]:
    """File names in order, and options as (key, value)."""
    names: list[str] = []
    options: list[tuple[str, str | None]] = []
    pending = [*argv]
    while pending:
        word = pending.pop(0)
        if not word.startswith("-"):
            names.append(word)
            continue
        key, equals, text = word.lstrip("-").partition("=")
        value: str | None = text if equals else None
        if not equals and pending and not re.match(r"-{1,2}[a-zA-Z]", pending[0]) and key not in _FLAGS:
            value = pending.pop(0)
        if key in ("config", "c"):
            if value is None:
                raise Refusal("--config", "needs a file", "For example --config recipes/grpo.yaml.")
            names.append(value)
        else:
            options.append((key, value))
    return names, options


_FLAGS = ("help", "h", "print_config", "no-user-code", "resolved")


def _change_class(result: Composed, key: str, text: str | None) -> bool:
    """Apply an option that puts another class where a component stands; False if it is not one."""
    if text is None:
        return False
    value = strict_yaml.value_of(text, key)
    path = key.removesuffix(".class_path")
    parts = path.split(".")
    try:
        old = result.at(path)
    except KeyError:
        if len(parts) == 3 and parts[1] in catalog.dict_slots() and is_component(value):
            result.add({parts[0]: {parts[1]: {parts[2]: value}}}, {tuple(parts): Place(COMMAND_LINE, 0)})
            return True
        return False
    if not is_component(old) or not (value is None or is_component(value)):
        return False
    change: Any = value
    for part in reversed(path.split(".")):
        change = {part: change}
    result.add(change, {tuple(path.split(".")): Place(COMMAND_LINE, 0)})
    return True
