"""Hand-worked numbers of the published estimators; the reference vectors are in tests/vectors."""

import math
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.advantages import (
    GAE,
    GDPO,
    GPG,
    GreedyBaseline,
    LeaveOneOut,
    LengthWeighted,
    MeanScaled,
    PassAtK,
    PassAtKTopTwo,
    ReinforcePP,
    Score,
)
from lit_group_rl.advantages.leave_one_out import leave_one_out
from lit_group_rl.advantages.pass_at_k import pass_at_k_advantage
from lit_group_rl.types import BASELINE, POLICY, Recipe
from tests.builders import make_batch

NAN = float("nan")


def first(estimator, **fields) -> list[float]:
    return estimator.estimate(make_batch(**fields)).values[:, 0].tolist()


def test_leave_one_out() -> None:
    # the others of 1 have mean 3, of 2 mean 8/3, of 3 mean 7/3, of 4 mean 2
    assert first(LeaveOneOut(), scores=[1, 2, 3, 4]) == pytest.approx([-2, -2 / 3, 2 / 3, 2])
    assert first(LeaveOneOut(), scores=[5, NAN]) == [0, 0]
    assert first(LeaveOneOut(), scores=[5, 1, NAN]) == [4, -4, 0]


def test_leave_one_out_with_a_deviation_leaves_a_lone_success_unscaled() -> None:
    """Known fault B06."""
    # a failure: the others are 1, 0, 0, 0, mean 1/4, deviation sqrt((9/16 + 3/16) / 3) = 1/2; the success: others equal
    values = first(LeaveOneOut(divide_by_std=True), scores=[0, 1, 0, 0, 0])
    assert values == pytest.approx([-0.5, 1.0, -0.5, -0.5, -0.5], abs=1e-5)
    # the residue test must not depend on the scale
    tiny = first(LeaveOneOut(divide_by_std=True, eps=0.0), scores=[0, 1e-6, 0, 0, 0])
    assert tiny == pytest.approx([-0.5, 1e-6, -0.5, -0.5, -0.5])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-8, 8), min_size=2, max_size=7))
def test_leave_one_out_equals_its_definition(drawn: list) -> None:
    expected = [s - (sum(drawn) - s) / (len(drawn) - 1) for s in drawn]
    values = leave_one_out(torch.tensor(drawn, dtype=torch.float64), torch.zeros(len(drawn), dtype=torch.long))
    assert values.tolist() == pytest.approx(expected, abs=1e-12)


def test_greedy_baseline() -> None:
    fields = {"mask": [[1], [1], [0], [1]], "group_ids": [0, 0, 0, 1], "row_role": [POLICY, POLICY, BASELINE, POLICY]}
    # the greedy row of group 0 scored 0.4; group 1 has none
    assert first(GreedyBaseline(), scores=[1, 0, 0.4, 1], **fields) == pytest.approx([0.6, -0.4, 0, 0])
    assert first(GreedyBaseline(), scores=[1, 0, NAN, 1], **fields) == [0, 0, 0, 0]


def test_length_weighted_baseline() -> None:
    # (3 * 1 + 1 * 0) / 4 = 0.75
    batch = {"mask": [[1, 1, 1], [1, 0, 0]], "scores": [1, 0]}
    assert first(LengthWeighted(), **batch) == pytest.approx([0.25, -0.75])


def test_gpg_makes_up_for_rows_without_signal() -> None:
    # 6 rows count, 2 of them in a mixed group: alpha 3; centred +-0.5
    fields = {"scores": [1, 0, 1, 1, 0, 0], "group_ids": [0, 0, 1, 1, 2, 2]}
    assert first(GPG(), **fields) == pytest.approx([1.5, -1.5, 0, 0, 0, 0])
    assert first(GPG(rescale=False), **fields) == pytest.approx([0.5, -0.5, 0, 0, 0, 0])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_the_mean_over_all_subsets(case: tuple[int, int, int]) -> None:
    n, right, k = case
    outcome = [1] * right + [0] * (n - right)
    subsets = list(combinations(range(n), k))
    reward = {s: max(outcome[i] for i in s) for s in subsets}
    mean = sum(reward.values()) / len(subsets)
    deviation = math.sqrt(sum((r - mean) ** 2 for r in reward.values()) / len(subsets))
    expected = []
    for i in range(n):
        mine = [(reward[s] - mean) / deviation if deviation > 1e-12 else 0.0 for s in subsets if i in s]
        expected.append(sum(mine) / len(mine))
    values = pass_at_k_advantage(torch.tensor(outcome).bool(), torch.zeros(n, dtype=torch.long), k=k)
    assert values.tolist() == pytest.approx(expected, abs=1e-9)


def test_pass_at_k_refuses_subsets_larger_than_the_group() -> None:
    assert [p.field for p in PassAtK(4).checks(Recipe({}, 8, 2, 1))] == ["model.advantage.k"]
    assert not list(PassAtK(4).checks(Recipe({}, 8, 5, 1)))


def test_pass_at_k_warns_where_the_group_is_the_only_subset() -> None:
    # one subset has no deviation
    assert first(PassAtK(4), scores=[1, 0, 0, 0], solved=[1, 0, 0, 0]) == [0, 0, 0, 0]
    assert [p.warning for p in PassAtK(4).checks(Recipe({}, 8, 4, 1))] == [True]


def test_top_two_gap() -> None:
    assert first(PassAtKTopTwo(divide_by_std=False), scores=[1, 5, 2, 5.5]) == [0, 0, 0, 0.5]
    assert first(PassAtKTopTwo(), scores=[1, 5, 5]) == [0, 0, 0]
    assert first(PassAtKTopTwo(), scores=[5, NAN]) == [0, 0]
    # 0, 4: deviation sqrt(8); 4 / sqrt(8)
    assert first(PassAtKTopTwo(eps=0.0), scores=[0, 4]) == pytest.approx([0, math.sqrt(2)])


def test_mean_scaled() -> None:
    # mean 1/4: (1 - 1/4) * 4 = 3, -1/4 * 4 = -1; no success: 0
    scores = [1, 0, 0, 0, 0, 0]
    assert first(MeanScaled(), scores=scores, group_ids=[0, 0, 0, 0, 1, 1]) == pytest.approx([3, -1, -1, -1, 0, 0])


def test_gdpo_golden_values_of_another_trainer() -> None:
    # TRL 1.16
    columns = {"a": [0, 1, 0, 1], "b": [0, 0, 1, 1]}
    values = first(GDPO({"a": 1.0, "b": 1.0}), scores=[0, 1, 1, 2], rewards=columns)
    assert values == pytest.approx([-1.22466, 0, 0, 1.22466], abs=1e-5)


def test_gdpo_an_abstention_in_one_reward_adds_nothing() -> None:
    # a: z of 0 and 1; b abstains on the first row, so the second stands alone there and gets 0
    values = first(GDPO({"a": 1.0, "b": 5.0}, eps=0.0), scores=[0, 1], rewards={"a": [0, 1], "b": [NAN, 3]})
    assert values == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)])


def test_gdpo_names_a_reward_that_the_recipe_lacks() -> None:
    (problem,) = GDPO({"fromat": 1.0}).checks(Recipe({"rewards": {"format": None, "answer": None}}, 8, 4, 1))
    assert problem.field == "model.advantage.weights.fromat"
    assert "format, answer" in problem.fix


def test_reinforce_pp_pays_the_score_at_the_last_trained_token() -> None:
    # row 0: returns 2, 2 (untrained middle token); row 1: 0. Mean 4/3, squares 2 * 4/9 + 16/9 = 8/3, variance 4/3
    batch = make_batch([[1, 0, 1], [1, 0, 0]], scores=[2, 0])
    values = ReinforcePP(eps=0.0).estimate(batch).values
    up, down = (2 / 3) / math.sqrt(4 / 3), (-4 / 3) / math.sqrt(4 / 3)
    assert values.flatten().tolist() == pytest.approx([up, 0, up, down, 0, 0])


def test_gae_pays_the_score_at_the_last_trained_token_and_gives_returns() -> None:
    batch = make_batch([[1, 1, 0]], scores=[1.0], values=[[0.2, 0.4, 50.0]])
    result = GAE(lam=0.9).estimate(batch)
    assert result.values[0].tolist() == pytest.approx([0.74, 0.6, 0])
    assert result.returns[0].tolist() == pytest.approx([0.94, 1.0, 0])
    assert not result.returns.requires_grad


def test_gae_decouples_the_critic() -> None:
    batch = make_batch([[1, 1, 0]], scores=[1.0], values=[[0.2, 0.4, 50.0]])
    result = GAE(lam=0.9, critic_lam=1.0).estimate(batch)
    assert result.values[0].tolist() == pytest.approx([0.74, 0.6, 0])
    assert result.returns[0].tolist() == pytest.approx([1.0, 1.0, 0])


def test_gae_leaves_the_critic_alone_on_rows_without_a_score() -> None:
    batch = make_batch([[1, 1]], scores=[NAN], values=[[0.3, 0.4]])
    result = GAE().estimate(batch)
    assert result.values.tolist() == [[0, 0]]
    assert result.returns.tolist() == [[0.3, 0.4]]


def test_score() -> None:
    assert first(Score(), scores=[2.0, NAN]) == [2, 0]


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (PassAtK, {"k": 0}),
        (GDPO, {"weights": {}}),
        (GAE, {"lam": 1.5}),
        (GAE, {"gamma": -0.1}),
        (GAE, {"length_alpha": 0.0}),
        (GAE, {"critic_lam": 2.0}),
        (ReinforcePP, {"gamma": 2.0}),
        (LeaveOneOut, {"eps": -1.0}),
    ],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cls(**options)
