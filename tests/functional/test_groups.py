import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.functional.groups import (
    group_center,
    group_extreme,
    group_is_tied,
    group_mean,
    group_size,
    group_std,
    group_sum,
)

# groups a = rows 0, 2, 4 and b = rows 1, 3, interleaved on purpose
IDS = torch.tensor([7, 3, 7, 3, 7])
VALUES = torch.tensor([1.0, 10.0, 2.0, 14.0, 6.0])


def test_statistics_of_interleaved_groups_of_unequal_size() -> None:
    # a: 1 + 2 + 6 = 9, mean 3, squares 4 + 1 + 9 = 14, std sqrt(14 / 2); b: 24, mean 12, squares 4 + 4, std sqrt(8)
    assert group_sum(VALUES, IDS).tolist() == [9, 24, 9, 24, 9]
    assert group_size(IDS).tolist() == [3, 2, 3, 2, 3]
    assert group_mean(VALUES, IDS).tolist() == [3, 12, 3, 12, 3]
    assert group_center(VALUES, IDS).tolist() == [-2, -2, -1, 2, 3]
    a, b = math.sqrt(7), math.sqrt(8)
    assert group_std(VALUES, IDS).tolist() == pytest.approx([a, b, a, b, a], rel=1e-12)
    # ddof 0: sqrt(14 / 3) and sqrt(8 / 2)
    assert group_std(VALUES, IDS, ddof=0).tolist()[:2] == pytest.approx([math.sqrt(14 / 3), 2.0], rel=1e-12)
    assert group_extreme(VALUES, IDS, largest=True).tolist() == [6, 14, 6, 14, 6]
    assert group_extreme(VALUES, IDS, largest=False).tolist() == [1, 10, 1, 10, 1]


def test_rows_that_are_not_valid_have_no_part_in_any_statistic() -> None:
    valid = torch.tensor([True, True, True, False, False])
    values = torch.tensor([1.0, 10.0, 2.0, float("inf"), float("nan")])
    # a: rows 1 and 2, mean 1.5; b: row 10 alone
    assert group_mean(values, IDS, valid).tolist() == [1.5, 10, 1.5, 10, 1.5]
    assert group_center(values, IDS, valid).tolist() == [-0.5, 0, 0.5, 0, 0]
    assert group_size(IDS, valid).tolist() == [2, 1, 2, 1, 2]
    assert group_is_tied(values, IDS, valid).tolist() == [False, True, False, True, False]


def test_a_group_without_any_valid_row_is_zero_and_tied() -> None:
    ids, valid = torch.tensor([0, 0]), torch.tensor([False, False])
    values = torch.tensor([float("nan"), 3.0])
    assert group_mean(values, ids, valid).tolist() == [0, 0]
    assert group_center(values, ids, valid).tolist() == [0, 0]
    assert group_std(values, ids, valid).tolist() == [0, 0]
    assert group_is_tied(values, ids, valid).tolist() == [True, True]


@pytest.mark.parametrize("reward", [0.1, 0.35, 0.7, 1 / 3, -1e-30, 1e8])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_equal_rewards_center_to_exact_zero_though_their_float32_mean_does_not(reward: float, size: int) -> None:
    values = torch.full((size,), reward, dtype=torch.float32)
    assert not group_center(values, torch.zeros(size, dtype=torch.long)).any()
    assert not group_std(values, torch.zeros(size, dtype=torch.long)).any()


def test_a_large_common_offset_keeps_the_differences() -> None:
    values = torch.tensor([1e8, 1e8 + 1], dtype=torch.float64)
    ids = torch.zeros(2, dtype=torch.long)
    assert group_center(values, ids).tolist() == [-0.5, 0.5]
    assert group_std(values, ids).tolist() == pytest.approx([math.sqrt(0.5)] * 2, rel=1e-12)


def test_rounding_of_a_sum_is_a_tie_but_a_small_preference_is_not() -> None:
    ids = torch.zeros(2, dtype=torch.long)
    # 0.1 + 0.2 and 0.3 differ by one rounding, 5.6e-17
    assert group_is_tied(torch.tensor([0.1 + 0.2, 0.3], dtype=torch.float64), ids).all()
    assert not group_is_tied(torch.tensor([0.5, 0.50002], dtype=torch.float64), ids).any()


rows = st.lists(
    st.tuples(st.integers(-8, 8).map(lambda k: k / 4), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
)


def columns(drawn: list[tuple[float, int, bool]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values, ids, valid = zip(*drawn, strict=True)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(ids), torch.tensor(valid)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(-1000, 1000), st.sampled_from([0.5, 2.0, 1024.0]))
def test_center_ignores_a_shift_and_follows_a_scale(drawn: list, shift: int, scale: float) -> None:
    values, ids, valid = columns(drawn)
    center = group_center(values, ids, valid)
    torch.testing.assert_close(group_center(values + shift, ids, valid), center, rtol=0, atol=1e-9)
    torch.testing.assert_close(group_center(values * scale, ids, valid), center * scale, rtol=1e-12, atol=0)
    torch.testing.assert_close(group_std(values * scale, ids, valid), group_std(values, ids, valid) * scale)


@settings(max_examples=60, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_permuting_rows_with_their_ids_only_permutes(drawn: list, random) -> None:
    values, ids, valid = columns(drawn)
    order = torch.tensor(random.sample(range(len(ids)), len(ids)))
    for statistic in (group_mean, group_center, group_std, group_is_tied):
        before = statistic(values, ids, valid)
        torch.testing.assert_close(statistic(values[order], ids[order], valid[order]), before[order])


@settings(max_examples=60, deadline=None)
@given(rows)
def test_centered_groups_sum_to_zero_and_rows_that_abstain_are_zero(drawn: list) -> None:
    values, ids, valid = columns(drawn)
    center = group_center(values, ids, valid)
    assert group_sum(center, ids, valid).abs().max() < 1e-12
    assert not center[~valid].any()


@settings(max_examples=60, deadline=None)
@given(rows)
def test_an_abstention_changes_nothing_for_the_others(drawn: list) -> None:
    values, ids, valid = columns(drawn)
    more = torch.cat([values, torch.tensor([99.0], dtype=torch.float64)])
    more_ids, more_valid = torch.cat([ids, ids[:1]]), torch.cat([valid, torch.tensor([False])])
    torch.testing.assert_close(group_center(more, more_ids, more_valid)[:-1], group_center(values, ids, valid))
    torch.testing.assert_close(group_std(more, more_ids, more_valid)[:-1], group_std(values, ids, valid))
