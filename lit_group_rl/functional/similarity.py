"""How alike the texts of a group are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

# a word of a-z and 0-9 as ROUGE cuts it; any other letter (Chinese, Greek) is a token of its own
_TOKEN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*|\n+")  # noqa: RUF001


def tokens(text: str, unit: str = "auto", limit: int | None = None) -> list[str]:
    """The text as lower-case words ('word'), characters without white space ('character'), or what it has ('auto').

    'auto' takes words, and characters where there is no letter and no digit: ROUGE's own tokenizer finds nothing in
    Chinese or in symbols, so that equal texts would score 0.  At most ``limit`` tokens.
    """
    text = text.lower()
    found = _TOKEN.findall(text) if unit != "character" else []
    if unit == "character" or (unit == "auto" and not found):
        found = [c for c in text if not c.isspace()]
    return found[:limit]


def lcs_length(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the longest common subsequence, bit-parallel: len(b) steps on integers of len(a) bits.

    Source: Hyyro, Bit-parallel LCS-length computation revisited, 2004.
    """
    places: dict[Hashable, int] = {}
    for i, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for token in b:
        hit = row & places.get(token, 0)
        row = ((row + hit) | (row - hit)) & everything
    return len(a) - row.bit_count()


def _f1(common: int, a: int, b: int) -> float:
    return 2 * common / (a + b) if common else 0.0


def rouge_l(a: Sequence[str], b: Sequence[str]) -> float:
    """F1 of the longest common subsequence of two token lists: 2 lcs / (|a| + |b|); 0 if either is empty."""
    return _f1(lcs_length(a, b), len(a), len(b))


def ngram_f1(a: Sequence[str], b: Sequence[str], n: int = 2) -> float:
    """F1 of the n-grams two token lists share, each counted as often as it occurs in both; 0 if either has none."""
    grams = [Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (a, b)]
    return _f1((grams[0] & grams[1]).total(), grams[0].total(), grams[1].total())


def first_and_last_sentence(text: str) -> tuple[str, str]:
    """The first and the last sentence; twice the same if there is one only."""
    parts = [p for p in _SENTENCE_END.split(text) if p.strip()] or [text]
    return parts[0], parts[-1]


def similarity_matrix(texts: Sequence[str], similarity: Callable[[str, str], float]) -> Tensor:
    """Pairwise similarity, 1 for equal texts; each pair of different texts is compared once.  -> [N, N] float64."""
    place: dict[str, int] = {}
    index = torch.tensor([place.setdefault(t, len(place)) for t in texts], dtype=torch.long)
    unique = list(place)
    out = torch.eye(len(unique), dtype=torch.float64)
    for i, a in enumerate(unique):
        for j in range(i):
            out[i, j] = out[j, i] = similarity(a, unique[j])
    return out[index][:, index]


def cosine_matrix(embeddings: Tensor) -> Tensor:
    """Cosine of every pair of rows.  [N, d] -> [N, N] float64; a row of zeros is alike to nothing."""
    normal = torch.nn.functional.normalize(embeddings.double(), dim=1)
    return normal @ normal.T


def member_scores(similarity: Tensor) -> Tensor:
    """Mean similarity of each member to the others: c[i] = mean of s[i, j] over j != i; NaN where there is no other.

    Their mean is the mean over all pairs, the consistency of the group.  [N, N] -> [N] float64.
    """
    n = len(similarity)
    others = similarity.double().sum(1) - similarity.double().diagonal()
    return others / (n - 1) if n > 1 else torch.full_like(others, torch.nan)
