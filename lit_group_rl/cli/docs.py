"""The generated parts of the documentation: ``python -m lit_group_rl.cli.docs`` writes those that are out of date.

A generated part stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; docs/components.md is one as a whole.
Read from the recipes and docstrings, without torch.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lit_group_rl.cli import catalog, show
from lit_group_rl.cli.compose import class_of, compose, is_component, options_of

ROOT = catalog.PACKAGE.parent
COMMAND = "python -m lit_group_rl.cli.docs"
BASELINE, WARM_UP = "grpo", "sft_warmup"
IN_BOTH = ("grpo", "ppo")
"""Recipes that the interview notes and the literature describe alike."""
ALGORITHM = (
    "sampler", "filter", "rewards", "shapers", "advantage", "ratio", "clip_policy", "surrogate", "loss_weights",
    "aux_losses", "aggregator", "critic", "evaluator", "update_schedule", "ppo_epochs", "minibatches",
)  # fmt: skip
"""Options of the module that make the algorithm; the others say which model, how long, how fast."""
READING = (
    "recipes/grpo.yaml", "lit_group_rl/types.py", "lit_group_rl/module.py",
    "lit_group_rl/engine.py", "lit_group_rl/samplers/group.py",
    "lit_group_rl/rewards/base.py", "lit_group_rl/advantages/group_relative.py", "lit_group_rl/ratios/token.py",
    "lit_group_rl/clip_policies/fixed.py", "lit_group_rl/surrogates/clipped.py", "lit_group_rl/aux_losses/kl.py",
    "lit_group_rl/aggregators/sequence_mean.py", "lit_group_rl/functional/groups.py", "lit_group_rl/batching.py",
    "lit_group_rl/scoring.py", "lit_group_rl/generation.py", "lit_group_rl/policy.py", "lit_group_rl/data/module.py",
    "lit_group_rl/checkpoint.py",
)  # fmt: skip
"""The core in the order in which to read it."""


class Recipe:
    """A recipe as the documentation shows it."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, catalog.files("recipes")[name]
        lines = self.path.read_text(encoding="utf-8").splitlines()
        head = [
            line.removeprefix("#").strip() for line in lines[: next(i for i, x in enumerate(lines) if x[:1] != "#")]
        ]
        text = " ".join(line for line in head if not line.startswith("lit-group-rl "))
        before, mark, after = text.partition("Against ")
        self.intro, self.differs = before.strip(), f"Against {after}" if mark else ""
        # the first line is 'Title. Authors year, source.' or 'Title.'
        self.title = re.sub(r"\. ((\S+ et al\.|[A-Z]\S*) )?\d{4}\b.*|\.$", "", head[0])
        self.noted = "interview note" in text

    @property
    def family(self) -> str:
        """Who describes it."""
        return "both" if self.name in IN_BOTH else "notes" if self.noted else "published"

    @property
    def papers(self) -> str:
        """Links to the papers that its head names."""
        ids = re.findall(r"arXiv:(\d{4}\.\d{5})", self.intro)
        return ", ".join(f"[{i}](https://arxiv.org/abs/{i})" for i in ids) or "interview note"

    @property
    def parts(self) -> dict[str, Any]:
        """Option of the module -> value, defaults filled in."""
        return show.completed(compose([self.name]))["model"]

    def classes(self) -> set[str]:
        """Names of all components in it, nested ones too."""
        return set(_classes(self.parts))


def _classes(value: Any) -> list[str]:
    inner = options_of(value) if is_component(value) else value if isinstance(value, dict) else {}
    own = [class_of(value).rsplit(".", 1)[-1]] if is_component(value) else []
    return own + [name for part in inner.values() for name in _classes(part)]


@cache
def recipes() -> tuple[Recipe, ...]:
    """All algorithms: the baseline first, then those of the notes, then the published ones."""
    order = {"both": 0, "notes": 1, "published": 2}
    found = [Recipe(name) for name in catalog.files("recipes") if name != WARM_UP]
    return tuple(sorted(found, key=lambda r: (order[r.family], r.name)))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def recipe_table(prefix: str) -> str:
    """Recipe, what it is, paper, what differs, family; links to the files from a folder at ``prefix``."""
    rows = [
        [
            f"[{r.name}]({prefix}{r.name}.yaml)",
            r.title,
            r.papers,
            r.differs.removeprefix("Against GRPO: ") or "the baseline",
            r.family,
        ]
        for r in recipes()
    ]
    return table(["recipe", "what it is", "paper", "what differs from GRPO", "family"], rows)


def slot_table() -> str:
    """Recipe x slot; blank = as in the baseline."""
    first = Recipe(BASELINE).parts
    used = [s for s in ALGORITHM if any(r.parts.get(s) != first.get(s) for r in recipes())]
    rows = [["`grpo`", *(_cell(first.get(s)) for s in used)]]
    for r in recipes():
        if r.name != BASELINE:
            parts = r.parts
            rows.append([f"`{r.name}`", *("" if parts.get(s) == first.get(s) else _cell(parts.get(s)) for s in used)])
    return table(["recipe", *used], rows)


def _cell(value: Any) -> str:
    if isinstance(value, dict) and not is_component(value):
        return "<br>".join(f"`{show.describe(v)}`" for v in value.values())
    return "none" if value is None else f"`{show.describe(value)}`"


def recipe_pages() -> str:
    """One short section per recipe: its head, and the algorithm's difference from the baseline."""
    pages, first = [], Recipe(BASELINE).parts
    for r in recipes():
        lines = [f"### {r.name}", "", prose(r.intro), "", prose(r.differs)]
        parts = r.parts
        rows = show.differences({k: first.get(k) for k in ALGORITHM}, {k: parts.get(k) for k in ALGORITHM})
        lines += ["", "```text", *(f"{k}: {old} -> {new}" for k, old, new in rows), "```"] if rows else []
        names = sorted(n for n in r.classes() if any(n in catalog.names(s) for s in ALGORITHM if s in catalog.slots()))
        lines += ["", "Parts: " + ", ".join(f"[{n}](components.md#{n.lower()})" for n in names) + "."]
        pages.append("\n".join(lines))
    return "\n\n".join(re.sub(r"\n{3,}", "\n\n", page) for page in pages)


def prose(text: str) -> str:
    """Text of a docstring as Markdown: cross-references as code, indented formulas untouched."""
    lines = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).split("\n")
    return "\n".join(line if line.startswith("    ") else line.replace("<", "&lt;") for line in lines)


def components_page() -> str:
    """Every component with its formula and source."""
    out = [
        "# Components",
        f"Formula and source of every component, from its docstring. Generated by `{COMMAND}`; options and their\n"
        "defaults: `lit-group-rl ls CLASS`. B rows (completions), T completion tokens; `mask` True = the token counts.",
    ]
    users = {r.name: r.classes() for r in recipes()}
    for slot, base in catalog.slots().items():
        names = catalog.names(slot)
        entry = catalog.entry(base)
        if names and entry:
            out += [f"## {slot}", prose(entry.doc)]
        for name in names:
            out += [f"### {name}", *_component(name)]
            used = [r for r, classes in users.items() if name in classes]
            out += [f"In the recipes: {', '.join(used)}."] if used and len(used) < len(users) else []
    return "\n\n".join(out) + "\n"


def _component(name: str) -> list[str]:
    node, path = catalog._node(name), catalog._classes()[name].path
    link = f"[`{path.relative_to(ROOT).as_posix()}`](../{path.relative_to(ROOT).as_posix()})"
    texts = [f"{link}. " + prose(ast.get_docstring(node) or "")]
    words = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for function, where in _functions(path).items():
        doc = ast.get_docstring(where)
        if function in words and doc and re.search(r"^ {4}", doc, re.MULTILINE):
            texts.append(f"`{function}`: " + prose(inspect.cleandoc(doc)))
    return texts


@cache
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file, and those that it takes from ``functional``."""
    tree = catalog._tree(path)
    found = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lit_group_rl.functional."):
            source = ROOT.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            theirs = {n.name: n for n in catalog._tree(source).body if isinstance(n, ast.FunctionDef)}
            found |= {a.name: theirs[a.name] for a in node.names if a.name in theirs}
    return found


def reading_table() -> str:
    """The core files in reading order with their lengths."""
    rows = []
    for name in READING:
        text = (ROOT / name).read_text(encoding="utf-8")
        what = catalog.header(ROOT / name) if name.endswith(".yaml") else (ast.get_docstring(ast.parse(text)) or "")
        rows.append([f"[{name}]({name})", str(len(text.splitlines())), what.split("\n")[0]])
    total = sum(int(row[1]) for row in rows)
    return table(["file", "lines", "what it says of itself"], rows) + f"\n\nTogether {total} lines."


SECTIONS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"recipes": lambda: recipe_table("recipes/"), "reading order": reading_table},
    "recipes/README.md": {"recipes": lambda: recipe_table("")},
    "docs/algorithms.md": {"recipe x slot": slot_table, "recipe by recipe": recipe_pages},
}
"""File -> generated section -> its text."""


def section(text: str, name: str) -> tuple[int, int]:
    """Where the content of a generated section begins and ends."""
    match = re.search(rf"<!-- generated: {re.escape(name)} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    if match is None:
        raise ValueError(f"no section '<!-- generated: {name} -->' ... '<!-- end -->'")
    return match.span(1)


def generated() -> dict[str, str]:
    """File -> its whole text with every generated section up to date."""
    made = {"docs/components.md": components_page()}
    for file, sections in SECTIONS.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        for name, make in sections.items():
            start, end = section(text, name)
            text = text[:start] + "\n" + make() + "\n\n" + text[end:]
        made[file] = text
    return made


def main() -> int:
    """Write what is out of date."""
    if not (ROOT / "pyproject.toml").is_file():
        print("docs: there is nothing to write beside an installed package. Run it in a checkout", file=sys.stderr)
        return 2
    for file, text in generated().items():
        path = ROOT / file
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{file} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
