"""A report as one list of blocks, written as Markdown and as a page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """A title; level 1 is the report's own."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class Grid:
    """Rows under a head; the first column is text, the rest numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """The curves."""

    file: str
    caption: str


Block = Heading | Text | Grid | Picture


def markdown(report: Sequence[Block]) -> str:
    """As Markdown, the picture beside it."""
    parts = []
    for block in report:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {block.text}")
        elif isinstance(block, Text):
            parts.append(f"**{block.text}**" if block.warning else block.text)
        elif isinstance(block, Picture):
            parts.append(f"![held-out accuracy, entropy, live groups and length over completions]({block.file})")
            parts.append(block.caption)
        else:
            rule = ["---", *["---:"] * (len(block.head) - 1)]
            rows = [block.head, rule, *([cell.replace("|", "\\|") for cell in row] for row in block.rows)]
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(parts) + "\n"


STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --faint: #6a7077; --line: #d9dce0; --ground: #fff; --warn: #b45309 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7e9; --faint: #9aa0a6; --line: #3a3f45; --ground: #16181b; --warn: #f2b35d }
}
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
p { max-width: 46rem } .note, figcaption { color: var(--faint); font-size: .9rem } .warning { color: var(--warn) }
figure { margin: 1.2rem 0 } figure .wide { margin: 0 } svg { display: block; height: auto; min-width: 42rem }
.wide { overflow-x: auto; margin: .8rem 0 } table { border-collapse: collapse; font-size: .92rem }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums }
td { white-space: nowrap } th { font-weight: 600; color: var(--faint) }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
.words th, .words td { text-align: left; white-space: normal; overflow-wrap: anywhere }
code { font: .88em ui-monospace, monospace } i { font-style: normal; display: inline-block; width: .7rem;
  height: .7rem; border-radius: 50%; margin-right: .5rem }
"""


def page(report: Sequence[Block], picture: str, colours: Mapping[str, str]) -> str:
    """As one HTML file that holds style and picture.  ``colours``: side -> its line in the picture."""
    title = next(html.escape(block.text) for block in report if isinstance(block, Heading))
    body = "\n".join(_element(block, picture, colours) for block in report)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _element(block: Block, picture: str, colours: Mapping[str, str]) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{html.escape(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        kind = ' class="warning"' if block.warning else ""
        return f"<p{kind}>{_inline(block.text)}</p>"
    if isinstance(block, Picture):
        caption = f"<figcaption>{html.escape(block.caption)}</figcaption>"
        return f'<figure>\n<div class="wide">{picture}</div>\n{caption}\n</figure>'
    words = any(row[0].startswith("`") for row in block.rows)
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in block.head)
    rows = []
    for row in block.rows:
        dot = f'<i style="background:{colours[row[0]]}"></i>' if row[0] in colours else ""
        cells = [dot + _inline(row[0]), *map(_inline, row[1:])]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    kind = ' class="words"' if words else ""
    lines = "\n".join(rows)
    return f'<div class="wide"><table{kind}>\n<tr>{head}</tr>\n{lines}\n</table></div>'


def _inline(text: str) -> str:
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
