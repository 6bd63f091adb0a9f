"""How every refusal looks: ``error: <field>: <what> (<file> line <n>). <fix>``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Place:
    """A line of a file; line 0 is no file but the command line."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{shown(self.file)} line {self.line}" if self.line else self.file


class Refusal(Exception):
    """Ends the command with exit code 2; its text is all that the user sees."""

    exit_code = 2

    def __init__(self, field: str, what: str, fix: str = "", place: Place | None = None) -> None:
        where = f" ({place})" if place else ""
        fix = fix.strip()
        ending = "" if not fix or fix.endswith((".", "?", ")")) else "."
        super().__init__(f"{field}: {what.rstrip('.')}{where}.{' ' + fix + ending if fix else ''}")
        self.field, self.what, self.fix, self.place = field, what, fix, place


def shown(path: str | Path) -> str:
    """A path as short as it can be said from here."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; letter case and dashes do not count."""
    plain = {k.lower().replace("-", "_"): k for k in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), plain, 1, 0.6)
    return plain[found[0]] if found else None


def suggest(word: str, known: Iterable[str], limit: int = 24) -> str:
    """'Did you mean X? Known: A, B, C.'"""
    known = list(known)
    near = closest(word, known)
    listed = ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "")
    parts = [f"Did you mean '{near}'?" if near else "", f"Known: {listed}." if listed else ""]
    return " ".join(p for p in parts if p)
