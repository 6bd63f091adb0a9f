"""Small tasks with one right answer, written in a few characters, for the embedded policy.

Every task numbers its prompts 0..space-1, so a split is a draw of distinct numbers: nothing is generated twice and
nothing depends on the order of generation or on Python's hash seed.
"""

from __future__ import annotations

import random
import string
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lit_group_rl.data.base import PromptSource
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Prompt, RecipeError

ALPHABET = string.digits + string.ascii_lowercase + " +-*=,:;.?!()[]{}<>/"
"""Every character a shipped task may use; the embedded policy's tokenizer has one token for each."""

BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Task(PromptSource):
    """A numbered space of prompts.  The held-out ones depend on ``content_seed`` alone, not on ``train_size``."""

    level: int = 2
    """Difficulty; each task says what it counts."""
    train_size: int = 20_000
    """Training prompts at most; a small space gives what the held-out prompts leave."""
    content_seed: int = 0
    """Chooses which prompts are drawn and which are held out."""

    levels: ClassVar[tuple[int, int]] = (1, 8)

    def __post_init__(self) -> None:
        low, high = self.levels
        require(low <= self.level <= high, self, "level", f"must lie in {low}..{high}")
        require(self.train_size >= 1, self, "train_size", "must be at least 1")

    @property
    @abstractmethod
    def space(self) -> int:
        """How many different prompts there are at this level."""

    @abstractmethod
    def item(self, number: int) -> tuple[str, str]:
        """(prompt, answer) of a number below ``space``; different numbers give different prompts."""

    def load(self, heldout_size: int) -> tuple[list[Prompt], list[Prompt]]:
        name = type(self).__name__
        if self.space <= heldout_size:
            raise RecipeError(
                f"data.heldout_size: {name} at level {self.level} has only {self.space} different prompts, "
                f"so {heldout_size} cannot be held out. Raise data.source.level or lower data.heldout_size"
            )
        heldout = self._draw("heldout", heldout_size)
        kept = set(heldout)
        train = self._draw("train", min(self.space, self.train_size + heldout_size))
        train = [n for n in train if n not in kept][: self.train_size]
        return [self._prompt(n) for n in train], [self._prompt(n) for n in heldout]

    def _draw(self, purpose: str, count: int) -> list[int]:
        seed = seed_of("task", type(self).__name__, self.level, self.content_seed, purpose)
        return random.Random(seed).sample(range(self.space), count)

    def _prompt(self, number: int) -> Prompt:
        text, answer = self.item(number)
        return Prompt(text, answer, place=f"{type(self).__name__} level {self.level} number {number}")


@dataclass(frozen=True)
class Addition(Task):
    """Add two numbers of ``level`` digits each: ``24+53=`` -> ``77``."""

    levels = (1, 9)

    @property
    def space(self) -> int:
        return len(self._numbers) ** 2

    @property
    def _numbers(self) -> range:
        return range(0 if self.level == 1 else 10 ** (self.level - 1), 10**self.level)

    def item(self, number: int) -> tuple[str, str]:
        first, second = divmod(number, len(self._numbers))
        a, b = self._numbers[first], self._numbers[second]
        return f"{a}+{b}=", str(a + b)


def _word(number: int, length: int, letters: str) -> str:
    out = ""
    for _ in range(length):
        number, at = divmod(number, len(letters))
        out += letters[at]
    return out


@dataclass(frozen=True)
class Copy(Task):
    """Repeat a word of ``level`` letters: ``c:abc=`` -> ``abc``."""

    level: int = 4

    levels = (1, 12)

    @property
    def space(self) -> int:
        return 26**self.level

    def item(self, number: int) -> tuple[str, str]:
        word = _word(number, self.level, string.ascii_lowercase)
        return f"c:{word}=", word


@dataclass(frozen=True)
class Reverse(Task):
    """Write a word of ``level`` letters backwards: ``r:abc=`` -> ``cba``."""

    level: int = 4

    levels = (2, 12)

    @property
    def space(self) -> int:
        return 26**self.level

    def item(self, number: int) -> tuple[str, str]:
        word = _word(number, self.level, string.ascii_lowercase)
        return f"r:{word}=", word[::-1]


@dataclass(frozen=True)
class Maximum(Task):
    """The largest of ``level`` numbers of two digits: ``m:31,94,28=`` -> ``94``."""

    level: int = 3

    levels = (2, 8)

    @property
    def space(self) -> int:
        return 90**self.level

    def item(self, number: int) -> tuple[str, str]:
        numbers = []
        for _ in range(self.level):
            number, rest = divmod(number, 90)
            numbers.append(10 + rest)
        return f"m:{','.join(map(str, numbers))}=", str(max(numbers))


@dataclass(frozen=True)
class Sort(Task):
    """Sort ``level`` digits: ``s:3192=`` -> ``1239``."""

    level: int = 4

    levels = (2, 12)

    @property
    def space(self) -> int:
        return 10**self.level

    def item(self, number: int) -> tuple[str, str]:
        digits = _word(number, self.level, string.digits)
        return f"s:{digits}=", "".join(sorted(digits))


def _prefixes(depth: int, rest: int) -> int:
    """Ways to add ``rest`` brackets of three kinds to a valid prefix with ``depth`` open ones, leaving some open."""
    ways = {d: int(d > 0) for d in range(depth + rest + 1)}
    for left in range(1, rest + 1):
        ways = {d: len(BRACKETS) * ways[d + 1] + (ways[d - 1] if d else 0) for d in range(depth + rest - left + 1)}
    return ways[depth]


@dataclass(frozen=True)
class Parentheses(Task):
    """Close the open ones of ``level`` brackets of three kinds: ``p:([]{=`` -> ``})``."""

    level: int = 6

    levels = (2, 16)

    @property
    def space(self) -> int:
        return _prefixes(0, self.level)

    def item(self, number: int) -> tuple[str, str]:
        text, closers = "", ""
        for rest in reversed(range(self.level)):
            ways = _prefixes(len(closers) + 1, rest)
            kind, after = divmod(number, ways)
            if kind < len(BRACKETS):
                opener = list(BRACKETS)[kind]
                text, closers, number = text + opener, BRACKETS[opener] + closers, after
            else:
                text, closers, number = text + closers[0], closers[1:], number - len(BRACKETS) * ways
        return f"p:{text}=", closers
