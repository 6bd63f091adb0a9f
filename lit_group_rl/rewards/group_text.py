"""Group scores from the words of the completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_group_rl.functional.similarity import first_and_last_sentence, ngram_f1, rouge_l
from lit_group_rl.rewards.group_score import TokenScore
from lit_group_rl.schedules.base import require


@dataclass(frozen=True)
class GroupRougeL(TokenScore):
    """Agreement with the rest of the group as ROUGE-L F1: 2 lcs / (length + length)."""

    def compare(self, a: Sequence[str], b: Sequence[str]) -> float:
        return rouge_l(a, b)


@dataclass(frozen=True)
class GroupNGram(TokenScore):
    """Agreement with the rest of the group as F1 of shared n-grams, each counted as often as both have it."""

    n: int = 2
    """Tokens of an n-gram; texts that are shorter share nothing unless they are equal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.n >= 1, self, "n", "must be at least 1")

    def compare(self, a: Sequence[str], b: Sequence[str]) -> float:
        return ngram_f1(a, b, self.n)


@dataclass(frozen=True)
class GroupFirstLast(GroupRougeL):
    """Agreement with the rest of the group on the first and the last sentence, ROUGE-L F1, mean of the two.

    A cheap stand-in for the whole text where completions are long.
    """

    def parts(self, text: str) -> tuple[str, ...]:
        return first_and_last_sentence(text)
