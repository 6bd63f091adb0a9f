import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.advantages import GroupRelative
from lit_group_rl.advantages.group_relative import group_relative
from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.runner import RewardMonitor, score_rewards
from lit_group_rl.schedules.base import Clock
from tests.builders import make_batch

NAN = float("nan")
ROOT_HALF = math.sqrt(0.5)  # two rewards lie half their distance from the mean and sqrt(1/2) of it is their deviation


def estimate(scores: list[float], ids: list[int], mask: list | None = None, **options) -> list[float]:
    return GroupRelative(**options).estimate(make_batch(mask, scores=scores, group_ids=ids)).values[:, 0].tolist()


def test_close_rewards_are_told_apart() -> None:
    """Known fault B01; in float64, where float32 gives 0.6605."""
    # deviation 2e-5 * sqrt(1/2) = 1.41421e-5; 1e-5 / (1.41421e-5 + 1e-6) = 0.66041
    assert estimate([0.5, 0.50002], [0, 0]) == pytest.approx([-0.66041, 0.66041], abs=1e-4)


def test_a_masked_member_is_left_out_of_the_statistics() -> None:
    """Known fault B02."""
    assert estimate([1, 1, 10], [0, 0, 0], [[1, 1], [1, 1], [0, 0]]) == [0, 0, 0]
    assert estimate([50, 2], [0, 0], [[0], [1]], divide_by="none") == [0, 0]


def test_groups_are_told_by_their_ids_not_by_position() -> None:
    """Known fault B03."""
    expected = [-ROOT_HALF, -ROOT_HALF, ROOT_HALF, ROOT_HALF]
    assert estimate([0, 10, 1, 11], [5, 2, 5, 2], eps=0.0) == pytest.approx(expected)


def test_groups_may_differ_in_size() -> None:
    """Known fault B04."""
    assert estimate([2, 6, 9], [0, 0, 1], eps=0.0) == pytest.approx([-ROOT_HALF, ROOT_HALF, 0])
    ids = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    values = estimate([1, 2, 3, 4, 5, 5, 5, 4, 3, 2, 1], ids)
    assert values[4:7] == [0, 0, 0]
    # 1, 2, 3, 4: mean 2.5, deviation sqrt(5 / 3) = 1.290994
    assert values[:4] == pytest.approx([-1.5 / 1.290994, -0.5 / 1.290994, 0.5 / 1.290994, 1.5 / 1.290994], abs=1e-5)
    assert values[7:] == pytest.approx(values[:4][::-1])


def test_a_row_that_every_reward_abstained_on_is_neutral() -> None:
    """Known fault B05; the totals: tests/rewards/test_runner.py."""
    # the others are 1, 0, 2: mean 1, deviation 1
    assert estimate([1, 0, NAN, 2], [0] * 4, eps=0.0) == pytest.approx([0, -1, 0, 1])
    assert estimate([1, NAN], [0, 0]) == [0, 0]
    assert estimate([NAN, NAN], [0, 0]) == [0, 0]


def test_one_success_of_five() -> None:
    """Known fault B06, the plain group form."""
    # mean 0.2, squares 0.64 + 4 * 0.04 = 0.8, deviation sqrt(0.2); 0.8 / sqrt(0.2) = 1.788854
    assert estimate([0, 1, 0, 0, 0], [0] * 5) == pytest.approx([-0.447214, 1.788854] + [-0.447214] * 3, abs=1e-5)


@pytest.mark.parametrize("kind", [int, bool, np.float32, torch.tensor])
def test_whole_numbers_as_rewards_give_fractions_as_advantages(kind: type) -> None:
    """Known fault B54: [1, 0, 1] has mean 2/3 and deviation sqrt(1/3), so (1/3) / sqrt(1/3) = 0.57735."""

    class Whole(Reward):
        def score(self, samples):
            return [kind(1), kind(0), kind(1)]

    batch = make_batch(rows=3)
    score_rewards({"whole": Whole()}, batch, Clock(0, 1), 1, RewardMonitor())
    values = GroupRelative(eps=0.0).estimate(batch).values[:, 0].tolist()
    assert values == pytest.approx([0.57735, -1.15470, 0.57735], abs=1e-5)


@pytest.mark.parametrize("divide_by", ["group_std", "batch_std", "centered_batch_std", "none"])
@pytest.mark.parametrize("reward", [0.1, 0.35, 0.7])
def test_eight_equal_rewards_give_exact_zeros(divide_by: str, reward: float) -> None:
    scores = torch.full((8,), reward, dtype=torch.float32)
    assert not group_relative(scores, torch.zeros(8, dtype=torch.long), divide_by=divide_by).any()


def test_a_large_offset_keeps_the_preference() -> None:
    assert estimate([1e8, 1e8 + 1], [0, 0]) == pytest.approx([-0.7071, 0.7071], abs=1e-4)


def test_golden_values_of_another_trainer() -> None:
    # TRL 1.16, eps 1e-4: [1, 2, 3, 4], [0, 1], an abstention, and the batch deviation of [0, 1, 2, 4]
    four = estimate([1, 2, 3, 4], [0] * 4, eps=1e-4)
    assert four == pytest.approx([-1.16180, -0.38727, 0.38727, 1.16180], abs=1e-5)
    assert estimate([0, 1], [0, 0], eps=1e-4) == pytest.approx([-0.70701, 0.70701], abs=1e-5)
    assert estimate([1, 2, 3, NAN], [0] * 4, eps=1e-4) == pytest.approx([-0.9999, 0, 0.9999, 0], abs=1e-5)
    batch = estimate([0, 1, 2, 4], [0, 0, 1, 1], eps=1e-4, divide_by="batch_std")
    assert batch == pytest.approx([-0.29275, 0.29275, -0.58551, 0.58551], abs=1e-5)


def test_every_trained_token_gets_the_advantage_of_its_row_and_no_other() -> None:
    batch = make_batch([[1, 1, 0], [1, 0, 1]], scores=[0, 2])
    values = GroupRelative(divide_by="none").estimate(batch).values
    assert values.tolist() == [[-1, -1, 0], [1, 0, 1]]


def test_token_rewards_count_in_the_total() -> None:
    batch = make_batch([[1, 1], [1, 0]], scores=[0, 0], token_rewards=[[1, 2], [1, 50]])
    assert GroupRelative(divide_by="none").estimate(batch).values.tolist() == [[1, 1], [-1, 0]]  # 3 and 1


def test_a_group_of_one_is_refused() -> None:
    from lit_group_rl.types import Recipe

    problems = list(GroupRelative().checks(Recipe({}, 4, 1, 1)))
    assert [p.field for p in problems] == ["model.sampler.group_size"]
    assert not list(GroupRelative().checks(Recipe({}, 4, 2, 1)))


@pytest.mark.parametrize("options", [{"ddof": 2}, {"eps": -1.0}, {"eps": NAN}])
def test_bad_options_are_refused_by_name(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        GroupRelative(**options)


scores = st.lists(st.integers(-8, 8), min_size=2, max_size=8).filter(lambda s: len(set(s)) > 1)


@settings(max_examples=50, deadline=None)
@given(scores, st.integers(-500, 500), st.sampled_from([0.25, 3.0, 64.0]))
def test_the_normalised_advantage_ignores_shift_and_scale_of_the_scores(drawn: list, shift: int, scale: float) -> None:
    values = torch.tensor(drawn, dtype=torch.float64)
    ids = torch.zeros(len(drawn), dtype=torch.long)
    one = group_relative(values, ids, eps=0.0)
    torch.testing.assert_close(group_relative(values * scale + shift, ids, eps=0.0), one, rtol=1e-9, atol=1e-9)
    # unit deviation, sum 0
    assert one.sum().abs() < 1e-9
    assert (one**2).sum().item() == pytest.approx(len(drawn) - 1)
