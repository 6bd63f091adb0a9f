"""Find the answer in a completion."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

MAX_NUMBER_LENGTH = 64
"""Longer runs of digits are not numbers: a reward must not spend its time on them."""
MAX_EXPONENT = 300

_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_NUMBER = re.compile(rf"(?<![A-Za-z0-9.])([-+]?{_DIGITS})(?:\s?/\s?({_DIGITS}))?")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]+)\}\{([^{}]+)\}")
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)

Extract = Literal["whole", "last_line", "answer_tag", "last_number"]
"""Which part of a completion is the answer."""


def extract_answer(text: str, how: Extract = "whole") -> str | None:
    """The answer in a completion, stripped; None if it has none.

    whole: all of it                    last_line: the last line that is not blank
    answer_tag: inside the last complete <answer>..</answer>, whatever stands before it
    last_number: the last number, as it is written
    """
    if how == "whole":
        return text.strip()
    if how == "last_line":
        lines = text.strip().splitlines()
        return lines[-1].strip() if lines else None
    if how == "answer_tag":
        found = _ANSWER.findall(text)
        return found[-1].strip() if found else None
    written = [m.group() for m in _NUMBER.finditer(_plain(text))]
    return written[-1] if written else None


def numbers(text: str) -> list[Fraction | None]:
    """All numbers of a text, in order; None stands for one that is too long or has no value (1/0).

    Understands sign, thousands commas, decimals, exponents, a/b and LaTeX fractions; ``nan`` and ``inf`` are words.
    A minus between two numbers (``5-3``) is no sign.
    """
    return [_value(m) for m in _NUMBER.finditer(_plain(text))]


def find_number(text: str, where: str = "auto") -> Fraction | None:
    r"""The number that a completion gives as its answer; None if it gives none.

        boxed: the only number in the last \boxed{}     marker: the only number behind the last ####
        last: the last number                           whole: the text is one number and nothing else of substance
        auto: boxed if there is a box, else marker if there is one, else last

    A box or marker with several numbers ("41 or 42") is no answer.
    """
    box, marker = text.rfind("\\boxed{"), text.rfind("####")
    if where == "boxed" or (where == "auto" and box >= 0):
        return _only(_braces(text, box + len("\\boxed"))) if box >= 0 else None
    if where == "marker" or (where == "auto" and marker >= 0):
        line = text[marker + 4 :].lstrip(" ").split("\n", 1)[0]
        return _only(line) if marker >= 0 else None
    if where == "whole":
        match = _NUMBER.fullmatch(_plain(text).strip().rstrip("."))
        return _value(match) if match else None
    found = numbers(text)
    return found[-1] if found else None


def _only(text: str) -> Fraction | None:
    found = numbers(text)
    return found[0] if len(found) == 1 else None


def _braces(text: str, start: int) -> str:
    """What the brace at ``start`` encloses; all that follows if it is never closed."""
    depth = 0
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + 1 : i]
    return text[start + 1 :]


def _plain(text: str) -> str:
    return _FRACTION.sub(r"\1/\2", text.replace("\N{MINUS SIGN}", "-").replace("{,}", ",").replace("\\,", ""))


def _value(match: re.Match[str]) -> Fraction | None:
    parts = [_parse(p) for p in match.groups() if p is not None]
    if None in parts or (len(parts) == 2 and parts[1] == 0):
        return None
    return parts[0] if len(parts) == 1 else parts[0] / parts[1]  # type: ignore[operator]


def _parse(written: str) -> Fraction | None:
    if len(written) > MAX_NUMBER_LENGTH:
        return None
    exponent = re.search(r"[eE]([-+]?[0-9]+)$", written)
    if exponent and abs(int(exponent.group(1))) > MAX_EXPONENT:
        return None
    return Fraction(written.replace(",", ""))
