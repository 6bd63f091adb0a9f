"""What there is to choose from, read from the files themselves: recipes, overlays, slots and components.

Nothing of the package is imported, so that ``ls``, ``cat`` and ``diff`` answer at once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
REQUIRED = object()
"""Default of an option that has none."""

ROOTS = {"model": "LitGroupRL", "data": "PromptData"}
"""Top-level key of a recipe -> the class whose options stand under it."""


@dataclass(frozen=True)
class Option:
    """One option of a class."""

    name: str
    annotation: str
    default: Any
    """The value; REQUIRED; or, where it is no literal, its source text."""
    doc: str


@dataclass(frozen=True)
class Entry:
    """One class of the package."""

    name: str
    module: str
    doc: str
    """First line of its docstring."""
    options: dict[str, Option]

    @property
    def path(self) -> str:
        """Full class path."""
        return f"{self.module}.{self.name}"


def folder(kind: str) -> Path:
    """``recipes`` or ``configs``: beside the package in a checkout, inside it in a wheel."""
    beside = PACKAGE.parent / kind
    return beside if (PACKAGE.parent / "pyproject.toml").is_file() else PACKAGE / f"_{kind}"


def files(kind: str) -> dict[str, Path]:
    """Name -> file; overlays are named with their folder ('policy/tiny')."""
    root = folder(kind)
    return {p.relative_to(root).with_suffix("").as_posix(): p for p in sorted(root.rglob("*.yaml"))}


def header(path: Path) -> str:
    """The first comment line of a YAML file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                return line.lstrip("# ").rstrip() if line.startswith("#") else ""
    return ""


@cache
def slots() -> dict[str, str]:
    """Slot -> its base class: the options of the module and the data that take a component, and what these hold."""
    found = {}
    for owner in ROOTS.values():
        for option in _options(owner).values():
            base = next((word for word in re.findall(r"\w+", option.annotation) if word in _classes()), None)
            if base:
                found[option.name] = base
    return found | {"environment": "Environment", "engine": "RolloutEngine", "schedule": "Schedule"}


@cache
def dict_slots() -> tuple[str, ...]:
    """Slots that hold several components by name."""
    return tuple(o.name for owner in ROOTS.values() for o in _options(owner).values() if "dict[" in o.annotation)


_CLASS = re.compile(r"^class (\w+)(?:\(([^)]*)\))?:", re.MULTILINE)
_UNINDENTED = re.compile(r"^\S", re.MULTILINE)


@dataclass(frozen=True)
class _Found:
    """A top-level class, found by pattern: parsing every file would take most of a second."""

    path: Path
    bases: tuple[str, ...]
    abstract: bool


@cache
def _classes() -> dict[str, _Found]:
    """Every top-level class of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "cli" in path.relative_to(PACKAGE).parts:
            continue
        text = path.read_text(encoding="utf-8")
        for match in _CLASS.finditer(text):
            bases = (b.strip().split(".")[-1].split("[")[0] for b in (match[2] or "").split(","))
            end = _UNINDENTED.search(text, match.end())
            abstract = "@abstractmethod" in text[match.end() : end.start() if end else len(text)]
            found[match[1]] = _Found(path, tuple(b for b in bases if b and "=" not in b), abstract)
    return found


def _ancestors(name: str) -> list[str]:
    """The class and its bases within the package, nearest first."""
    chain = [name]
    for base in _classes()[name].bases:
        if base in _classes():
            chain += [a for a in _ancestors(base) if a not in chain]
    return chain


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _node(name: str) -> ast.ClassDef:
    path = _classes()[name].path
    return next(n for n in _tree(path).body if isinstance(n, ast.ClassDef) and n.name == name)


@cache
def names(slot: str) -> tuple[str, ...]:
    """The components that fit a slot, abstract and private classes left out."""
    return tuple(
        sorted(
            name
            for name, found in _classes().items()
            if slots()[slot] in _ancestors(name)
            and not (found.abstract or name.startswith("_") or found.path.name == "base.py")
        )
    )


def slots_of(name: str) -> list[str]:
    """The slots that a component fits."""
    return [slot for slot in slots() if name in names(slot)]


@cache
def entry(name: str) -> Entry | None:
    """A class of the package with its options; None if there is no such class."""
    if name not in _classes():
        return None
    module = ".".join(_classes()[name].path.relative_to(PACKAGE.parent).with_suffix("").parts)
    doc = (ast.get_docstring(_node(name)) or "").split("\n")[0]
    return Entry(name, module, doc, _options(name))


def find(class_path: str) -> Entry | None:
    """The class that a recipe names, bare or dotted; None when it is not one of this package."""
    if "." not in class_path or class_path.startswith("lit_group_rl."):
        return entry(class_path.rsplit(".", 1)[-1])
    return None


def foreign(class_path: str, folder: Path) -> Entry | None:
    """A class of the user's own, read from its file below ``folder``; None if there is none."""
    module, _, name = class_path.rpartition(".")
    path = folder.joinpath(*module.split(".")).with_suffix(".py") if module else folder
    if not path.is_file():
        return None
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return None
    node = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == name), None)
    if node is None:
        return None
    doc = ast.get_docstring(node) or ""
    init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    own = _fields(node) if init is None else _init_options(init, f"{doc}\n{ast.get_docstring(init) or ''}")
    base = next((b for b in map(ast.unparse, node.bases) if b in _classes()), None)
    inherited = _options(base) if base and init is None else {}
    return Entry(name, module, doc.split("\n")[0], inherited | own)


def _decorated(node: ast.stmt, name: str) -> bool:
    return any(name in ast.unparse(d) for d in getattr(node, "decorator_list", ()))


def _options(name: str) -> dict[str, Option]:
    for owner in _ancestors(name):
        node = _node(owner)
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init is not None:
            doc = (ast.get_docstring(node) or "") + "\n" + (ast.get_docstring(init) or "")
            return _init_options(init, doc)
        if _decorated(node, "dataclass"):
            break
    options: dict[str, Option] = {}
    for owner in reversed(_ancestors(name)):
        if _decorated(_node(owner), "dataclass"):
            for name, option in _fields(_node(owner)).items():
                doc = option.doc or (options[name].doc if name in options else "")
                options[name] = replace(option, doc=doc)
    return options


def _fields(node: ast.ClassDef) -> dict[str, Option]:
    """Annotated fields of a dataclass, each with the string under it."""
    options = {}
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        annotation = ast.unparse(item.annotation)
        if "ClassVar" in annotation or (item.value is not None and "init=False" in ast.unparse(item.value)):
            continue
        is_doc = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        doc = " ".join(str(after.value.value).split()) if is_doc else ""  # type: ignore[union-attr]
        options[item.target.id] = Option(item.target.id, annotation, _default(item.value), doc)
    return options


def _init_options(init: ast.FunctionDef, doc: str) -> dict[str, Option]:
    """Arguments of an __init__, with the lines of the class's ``Args:`` block."""
    docs = dict(re.findall(r"^ {4}(\w+): (.+(?:\n {6,}.+)*)", doc.partition("Args:")[2], re.MULTILINE))
    arguments = [*init.args.args[1:], *init.args.kwonlyargs]
    missing = len(init.args.args) - 1 - len(init.args.defaults)
    defaults = [*([None] * missing), *init.args.defaults, *init.args.kw_defaults]
    return {
        a.arg: Option(
            a.arg,
            ast.unparse(a.annotation) if a.annotation else "",
            _default(default),
            " ".join(docs.get(a.arg, "").split()),
        )
        for a, default in zip(arguments, defaults, strict=True)
    }


def _default(node: ast.expr | None) -> Any:
    if node is None:
        return REQUIRED
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _factory(node)


def _factory(node: ast.expr) -> Any:
    """The value of ``field(default=...)`` and ``field(default_factory=dict)``; else the source text."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("field"):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return _default(keyword.value)
            if keyword.arg == "default_factory":
                return {"dict": {}, "list": []}.get(ast.unparse(keyword.value), ast.unparse(keyword.value))
        return REQUIRED
    return ast.unparse(node)
