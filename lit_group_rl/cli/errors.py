"""What the parser, the constructors and Lightning say, turned into refusals."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compose import Composed, class_of, is_component, options_of
from lit_group_rl.cli.precheck import ELSEWHERE, TOP
from lit_group_rl.cli.refusal import Refusal, closest, suggest
from lit_group_rl.cli.user_code import meant

_KEY = re.compile(r'Parser key "([^"]+)"')
_GOT = re.compile(r"(?:Got value|Given value): (.*?)\.?\s*$", re.MULTILINE | re.DOTALL)
_LITERAL = re.compile(r"Expected a typing\.Literal\[([^\]]*)\]")
_EXPECTED = re.compile(r"Expected an? (<class '[\w.]+'>|list\[.*?\]|dict\[.*?\])")
_MEANING = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "NoneType": "null"}


def parser_refusal(message: str, config: Composed) -> Refusal:
    """One line from jsonargparse's nested report: the innermost key, what was expected there, what was given."""
    message = message.strip()
    path = ".".join(_KEY.findall(message)) or "command line"
    place = config.place(path)
    linked = re.match(r'Linked "([\w.]+)" must be given via "([\w.]+)"', message)
    if linked:
        return Refusal(linked[1], f"follows {linked[2]}", f"Set --{linked[2]}.")
    unknown = re.search(r"unrecognized arguments: (\S+?)(?:=|\.?$|\s)", message)
    if unknown:
        return _unknown_option(unknown[1], config)
    missing = re.search(r"the following arguments are required: ([\w, ]+)", message)
    if missing:
        return Refusal(path, f"missing: {missing[1]}", f"Set --{path}.{missing[1].split(',')[0]}=...", place)
    option = re.search(r"Option '([\w.]+)' is not accepted", message)
    if option:
        owner = re.findall(r"class_path '([\w.]+)'", message)
        entry = catalog.find(owner[-1]) or catalog.foreign(owner[-1], config.folder) if owner else None
        fix = suggest(option[1], entry.options if entry else ())
        whose = f" of {owner[-1].rsplit('.', 1)[-1]}" if owner else ""
        return Refusal(f"{path}.{option[1]}", f"'{option[1]}' is not an option{whose}", fix, place)
    return Refusal(path, *_leaf(message, path, config.folder), place=place)


def _leaf(message: str, path: str, folder: Path) -> tuple[str, str]:
    """(what, fix) of a value that does not fit."""
    got = _GOT.findall(message.rpartition("Parser key")[2])
    value = " ".join(got[0].split()).partition(". Got value:")[0] if got else ""
    known = ", ".join(catalog.names(slot)) if (slot := _slot(path)) else ""
    choices = _LITERAL.search(message)
    if choices:
        words = [c.strip().strip("'\"") for c in choices[1].split(",")]
        return f"'{value}' is not one of {', '.join(words)}", _near(value, words)
    rule = re.search(r"(\S+) does not conform to restriction v(\S+)", message)
    if rule:
        return f"must be {_words(rule[2])}, got {rule[1]}", "Give such a number."
    literal = re.search(r"invalid literal for int\(\) with base 10: (\S+?)\.?$", message)
    if literal:
        return f"expected a whole number, got {literal[1]}", _how(path, message)
    foreign = re.search(r"Import path (\S+) does not correspond to a subclass of (\w+)", message)
    if foreign:
        return f"'{foreign[1]}' is no {foreign[2]}", f"Known: {known}." if known else f"Subclass {foreign[2]}."
    unimportable = re.search(r"Problem with given class_path '([\w.]+)':\s*\n?\s*(.+)", message)
    if unimportable and "Parser key" not in unimportable[2]:
        near = meant(unimportable[1], folder)
        fix = f"Did you mean '{near}'?" if near else f"Modules are looked for in {folder} and beside the recipe."
        return f"'{unimportable[1]}' cannot be used: {unimportable[2].strip().rstrip('.')}", fix
    name = re.search(r"Expected a dot import path string: (\S+?)\.?$", message, re.MULTILINE)
    expected = list(dict.fromkeys(_type(e) for e in _EXPECTED.findall(message)))
    if name and (known or not expected):
        optimizers = [n for n, c in vars(torch.optim).items() if isinstance(c, type)] if "optimizer" in path else []
        fits = catalog.names(slot) if slot else optimizers
        return f"'{name[1]}' is not known", suggest(name[1], fits) or "Give a class path."
    if expected:
        return f"expected {' or '.join(expected)}, got {value or 'something else'}", _how(path, message)
    lines = [" ".join(line.split()) for line in message.splitlines() if line.strip()]
    return "; ".join(lines[-3:])[:300].rstrip("."), _how(path, message)


def _unknown_option(flag: str, config: Composed) -> Refusal:
    word = flag.lstrip("-").partition("=")[0]
    known = [f"trainer.{name}" for name in _parameters(Trainer)]
    near = closest(word, known)
    fix = f"Did you mean --{near}?" if near else "lit-group-rl fit --help lists the options."
    fix = ELSEWHERE.get(near or "", fix)
    return Refusal(f"--{word}", "is not an option", fix)


def _parameters(owner: type) -> list[str]:
    return [name for name in inspect.signature(owner).parameters if name not in ("self", "args", "kwargs")]


def _slot(path: str) -> str | None:
    return next((part for part in reversed(path.split(".")) if part in catalog.slots()), None)


def _near(word: str, known: list[str]) -> str:
    near = closest(word, known)
    return f"Did you mean '{near}'?" if near else "Give one of them."


def _type(text: str) -> str:
    name = text.removeprefix("<class '").removesuffix("'>").rsplit(".", 1)[-1]
    return _MEANING.get(name, f"a {name}")


def _words(rule: str) -> str:
    return rule.replace(">=", "at least ").replace("<=", "at most ").replace(">", "above ").replace("<", "below ")


def _how(path: str, message: str) -> str:
    owner = re.findall(r"given class_path 'lit_group_rl\.[\w.]*?(\w+)'", message)
    if owner:
        return f"`lit-group-rl ls {owner[-1]}` explains it."
    return (
        f"`lit-group-rl ls {slot}` lists what fits." if (slot := _slot(path)) else "`lit-group-rl fit --help` explains."
    )


@contextmanager
def building(config: Composed, parsed: Any) -> Iterator[None]:
    """A ValueError of a constructor is a refusal: 'Class(option=value): rule' is traced to its key and line."""
    try:
        yield
    except Refusal:
        raise
    except ValueError as error:
        raise constructor_refusal(str(error), config, parsed) from error


def constructor_refusal(text: str, config: Composed, parsed: Any) -> Refusal:
    """The refusal for what a constructor or a check said."""
    rule = re.fullmatch(r"(\w+)\((\w+)=(.*?)\): (.*)", text.strip(), re.DOTALL)
    if rule:
        name, option, value, what = rule.groups()
        path = _find(parsed, name, option, value) or f"{name}.{option}"
        fix = f"`lit-group-rl ls {name}` explains it." if catalog.entry(name) else "Change it."
        return Refusal(path, f"{what.removeprefix(option + ' ')}, got {value}", fix, config.place(path))
    text = re.sub(r"^model\.rewards: (?=[A-Z]\w+\.\w+: )", "", text.strip())
    field, colon, rest = text.partition(":")
    if not colon or not re.fullmatch(r"[\w.-]+", field):
        field, rest = _leading_field(text)
    field = _located(parsed, field, text)
    what, dot, fix = rest.strip().partition(". ")
    return Refusal(field, what, fix if dot else "", config.place(field))


def _located(parsed: Any, field: str, text: str) -> str:
    """The whole path of 'Class', 'Class.option' or 'option', as the classes call themselves; else ``field``."""
    owner, _, option = field.partition(".")
    found: list[tuple[str, dict[str, Any]]] = [*_components(parsed)]
    if field[:1].isupper():
        paths = [path for path, part in found if class_of(part).rsplit(".", 1)[-1] == owner]
        return f"{paths[0]}.{option}".rstrip(".") if paths else field
    if option or field in TOP:
        return field
    having = [(path, options_of(part)[field]) for path, part in found if field in options_of(part)]
    having.sort(key=lambda one: str(one[1]) not in text)
    return f"{having[0][0]}.{field}" if having else field


def _components(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All components of a configuration, with their paths."""
    node = node.as_dict() if hasattr(node, "as_dict") else node
    if not isinstance(node, dict):
        return
    if is_component(node):
        yield path, node
    for key, inner in (options_of(node) if is_component(node) else node).items():
        yield from _components(inner, f"{path}.{key}".lstrip("."))


def _leading_field(text: str) -> tuple[str, str]:
    match = re.match(r"((?:model|data|trainer|steps|seed)[\w.]*) (.*)", text.strip(), re.DOTALL)
    return (match[1], match[2]) if match else ("recipe", text)


def _find(parsed: Any, name: str, option: str, value: str) -> str | None:
    """Where a component of this class has this option value."""
    for path, part in _components(parsed):
        if class_of(part).rsplit(".", 1)[-1] == name and repr(options_of(part).get(option)) == value:
            return f"{path}.{option}"
    return None


@contextmanager
def building_trainer() -> Iterator[None]:
    """What Lightning does not accept, in one line."""
    try:
        yield
    except (ValueError, TypeError, MisconfigurationException) as error:
        first = " ".join(str(error).split())[:300].rstrip(".")
        raise Refusal("trainer", first, "Change the trainer options.") from error
