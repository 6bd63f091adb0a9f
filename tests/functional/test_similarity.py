"""Similarity of texts against hand-worked numbers, and the bit-parallel LCS against the table."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_group_rl.functional.similarity import (
    cosine_matrix,
    first_and_last_sentence,
    lcs_length,
    member_scores,
    ngram_f1,
    rouge_l,
    similarity_matrix,
    tokens,
)

WORDS = st.lists(st.sampled_from("abc"), max_size=40)


def table_lcs(a: list[str], b: list[str]) -> int:
    """The textbook recursion."""
    row = [0] * (len(b) + 1)
    for x in a:
        before = 0
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], before + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


@given(WORDS, WORDS)
def test_lcs_is_that_of_the_table(a: list[str], b: list[str]) -> None:
    assert lcs_length(a, b) == table_lcs(a, b)


@given(WORDS, WORDS)
def test_scores_lie_in_the_unit_interval_and_are_symmetric(a: list[str], b: list[str]) -> None:
    for score in (rouge_l, ngram_f1):
        assert 0 <= score(a, b) <= 1
        assert score(a, b) == score(b, a)
    assert not a or rouge_l(a, a) == 1


def test_rouge_by_hand() -> None:
    # the cat sat / the cat: lcs 2 of 3 and 2 tokens, 2 * 2 / 5
    assert rouge_l(["the", "cat", "sat"], ["the", "cat"]) == pytest.approx(0.8)
    assert rouge_l([], []) == 0


def test_ngrams_count_as_often_as_both_have_them() -> None:
    # ab ab against ab: the bigrams of a b a b are ab, ba, ab; of a b it is ab. Common 1: 2 * 1 / (3 + 1)
    assert ngram_f1(list("abab"), list("ab")) == pytest.approx(0.5)
    # three a are two bigrams, two a are one: 2 * 1 / 3
    assert ngram_f1(list("aaa"), list("aa")) == pytest.approx(2 / 3)
    assert ngram_f1(["12"], ["13"]) == 0


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("It's 12!", "auto", ["it", "s", "12"]),
        ("答案是12。", "auto", ["答", "案", "是", "12"]),
        ("+ -", "auto", ["+", "-"]),
        ("+ -", "word", []),
        ("A b", "character", ["a", "b"]),
        ("", "auto", []),
    ],
)
def test_tokens(text: str, unit: str, expected: list[str]) -> None:
    assert tokens(text, unit) == expected


def test_texts_without_latin_letters_are_compared() -> None:
    # ROUGE's own tokenizer finds no token in either and gives 0
    assert rouge_l(tokens("今天下雨"), tokens("今天下雨")) == 1
    assert rouge_l(tokens("今天下雨"), tokens("今天下雪")) == pytest.approx(0.75)
    assert rouge_l(tokens("🙂🙃"), tokens("🙂🙂")) == pytest.approx(0.5)


def test_at_most_limit_tokens_are_compared() -> None:
    assert tokens("a b c d", limit=2) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ("One.", "Three?")),
        ("It is 3.5 long", ("It is 3.5 long", "It is 3.5 long")),
        ("第一。第二。", ("第一。", "第二。")),
        ("line\n\nother", ("line", "other")),
        ("", ("", "")),
    ],
)
def test_first_and_last_sentence(text: str, expected: tuple[str, str]) -> None:
    assert first_and_last_sentence(text) == expected


def test_equal_texts_are_compared_once() -> None:
    seen = []

    def similarity(a: str, b: str) -> float:
        seen.append({a, b})
        return 0.25

    matrix = similarity_matrix(["x", "y", "x"], similarity)
    assert matrix.tolist() == [[1, 0.25, 1], [0.25, 1, 0.25], [1, 0.25, 1]]
    assert seen == [{"x", "y"}]


def test_member_scores() -> None:
    similarity = torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.0]])
    # (0.5 + 0) / 2, (0.5 + 0.2) / 2, (0 + 0.2) / 2
    assert member_scores(similarity).tolist() == pytest.approx([0.25, 0.35, 0.1])
    assert member_scores(torch.ones(1, 1)).isnan().all()


def test_a_row_of_zeros_is_alike_to_nothing() -> None:
    assert cosine_matrix(torch.tensor([[0.0, 0.0], [3.0, 4.0]])).tolist() == [[0, 0], [0, pytest.approx(1)]]
