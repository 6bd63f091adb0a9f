"""How much a completion agrees with the others of its group: base of the group scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_group_rl.functional.similarity import member_scores, similarity_matrix, tokens
from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import Problem, Recipe, RolloutBatch, Sample


class GroupScore(Reward):
    """Each row gets its mean similarity to the other members of its group; the mean over a group is its consistency.

    With weight 0 it is a column for the components that read a group quality (``GroupSupervised``, ``BetweenGroup``,
    ``GroupWeight``).  With a weight it is part of the score.  A row without another member abstains.  Agreement is not
    truth: paid for, it pushes towards the commonest answer and towards groups without any spread, so watch
    ``group/distinct_frac`` and ``group/zero_std_frac`` beside it.
    """

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if recipe.group_size < 2:
            yield Problem(
                "model.sampler.group_size",
                f"{type(self).__name__} compares the completions of a prompt and needs at least 2, got 1",
                f"Raise group_size, or set {recipe.place(self)} to null",
            )

    @abstractmethod
    def similarities(self, groups: Sequence[Sequence[str]]) -> list[Tensor]:
        """Pairwise similarity inside each group of texts, [n, n] each; 1 for equal texts."""

    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        """Completions of one group."""
        return member_scores(self.similarities([[s.completion for s in samples]])[0]).tolist() if samples else []

    def score_batch(self, batch: RolloutBatch) -> list[float | None]:
        ids = torch.where(batch.counted, batch.group_ids, -1).tolist()
        members = [[i for i, g in enumerate(ids) if g == group] for group in sorted(set(ids) - {-1})]
        members = [rows for rows in members if len(rows) > 1]
        out: list[float | None] = [None] * len(batch)
        texts = [[batch.samples[i].completion for i in rows] for rows in members]
        for rows, similarity in zip(members, self.similarities(texts), strict=True):
            for i, score in zip(rows, member_scores(similarity).tolist(), strict=True):
                out[i] = score
        return out


@dataclass(frozen=True)
class TokenScore(GroupScore):
    """A group score that compares two lists of tokens; of equal completions only one is compared."""

    weight: Number = 0.0
    """Weight in the total; 0 keeps it as a column for other components."""
    unit: Literal["auto", "word", "character"] = "auto"
    """Tokens: lower-case words, characters, or words with characters where a text has no letter and no digit."""
    max_tokens: int = 256
    """K: tokens of a completion that are compared at most, which bounds the cost of long ones."""

    range = (0.0, 1.0)

    def __post_init__(self) -> None:
        require_number(self, "weight")
        require(self.max_tokens >= 1, self, "max_tokens", "must be at least 1")

    @abstractmethod
    def compare(self, a: Sequence[str], b: Sequence[str]) -> float:
        """Similarity of two token lists, in [0, 1]."""

    def parts(self, text: str) -> tuple[str, ...]:
        """The pieces of a completion that are compared, each with its counterpart."""
        return (text,)

    def similarities(self, groups: Sequence[Sequence[str]]) -> list[Tensor]:
        cut = {
            text: [tokens(part, self.unit, self.max_tokens) for part in self.parts(text)]
            for texts in groups
            for text in texts
        }

        def similarity(a: str, b: str) -> float:
            pairs = list(zip(cut[a], cut[b], strict=True))
            return sum(self.compare(x, y) for x, y in pairs) / len(pairs)

        return [similarity_matrix(texts, similarity) for texts in groups]
