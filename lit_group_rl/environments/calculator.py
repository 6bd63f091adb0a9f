"""A calculator as a tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from lit_group_rl.environments.base import Environment, Turn

MAX_DIGITS = 64
"""Longer numbers are refused, so that a product of products cannot grow without end."""
_EXPRESSION = re.compile(r"[-+*/().\s0-9]*[0-9][-+*/().\s0-9]*")
_TOKEN = re.compile(r"\s*(?:([0-9]+(?:\.[0-9]+)?)|([-+*/()]))")


class NoValue(ValueError):
    """The text is no sum, or its value is not a number of a sensible size."""


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression of + - * / and brackets.  It is parsed here and never run as code.

    Raises NoValue for anything else, for a division by zero and for numbers of more than 64 digits.
    """
    tokens, at = [], 0
    text = expression.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NoValue(f"cannot read {text[at]!r}")
        tokens.append(match[1] or match[2])
        at = match.end()
    value, rest = _sum(tokens)
    if rest:
        raise NoValue(f"{rest[0]!r} stands behind the end")
    return value


def _sum(tokens: list[str]) -> tuple[Fraction, list[str]]:
    return _chain(tokens, _product, "+-")


def _product(tokens: list[str]) -> tuple[Fraction, list[str]]:
    return _chain(tokens, _factor, "*/")


def _chain(
    tokens: list[str], part: Callable[[list[str]], tuple[Fraction, list[str]]], signs: str
) -> tuple[Fraction, list[str]]:
    """Parts joined by operators of one rank, from the left."""
    value, rest = part(tokens)
    while rest and rest[0] in signs:
        sign = rest[0]
        other, rest = part(rest[1:])
        if sign == "/" and other == 0:
            raise NoValue("division by zero")
        value = {"+": value.__add__, "-": value.__sub__, "*": value.__mul__, "/": value.__truediv__}[sign](other)
        _check(value)
    return value, rest


def _factor(tokens: list[str]) -> tuple[Fraction, list[str]]:
    if not tokens:
        raise NoValue("it ends too early")
    first, rest = tokens[0], tokens[1:]
    if first == "-":
        value, rest = _factor(rest)
        return -value, rest
    if first == "(":
        value, rest = _sum(rest)
        if rest[:1] != [")"]:
            raise NoValue("a bracket is not closed")
        return value, rest[1:]
    if first in "+*/)":
        raise NoValue(f"{first!r} stands where a number should")
    return _check(Fraction(first)), rest


def _check(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise NoValue("too large")
    return value


def shown(value: Fraction) -> str:
    """An integer as it is, anything else as a decimal of at most six places."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Calculator(Environment):
    """Works out what stands between ``<`` and ``>`` and writes the value behind it: ``<17+25>`` becomes ``<17+25>42``.

    It knows + - * / and brackets, exactly.  What it cannot work out is answered with ``?``.  An empty call, ``<>``, is
    about the question: its last expression that has a value.  The policy then writes on; an end token ends the episode.
    """

    stops: ClassVar[tuple[str, ...]] = (">",)

    def reply(self, turns: Sequence[Turn]) -> list[str | None]:
        return [None if turn.ended else self._answer(turn) for turn in turns]

    @staticmethod
    def _answer(turn: Turn) -> str:
        _, opened, call = turn.said.partition(">")[0].rpartition("<")
        tried = [call] if call.strip() else reversed(_EXPRESSION.findall(_question(turn)))
        for expression in tried if opened else ():
            try:
                return shown(evaluate(expression))
            except NoValue:
                continue
        return "?"


def _question(turn: Turn) -> str:
    text = turn.prompt.text
    return text if isinstance(text, str) else str(text[-1].get("content", ""))
