"""Group quality and moving moments, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lit_group_rl.functional.moments import MovingMoments
from lit_group_rl.functional.quality import group_quality, standardised_between_groups

NAN = math.nan
IDS = torch.tensor([7, 7, 3, 3, 9])


def test_quality_is_the_mean_of_those_who_count() -> None:
    column = torch.tensor([0.2, 0.4, NAN, 0.6, NAN])
    valid = torch.tensor([True, True, True, True, True])
    quality, known = group_quality(column, IDS, valid)
    assert quality.tolist() == pytest.approx([0.3, 0.3, 0.6, 0.6, 0])
    assert known.tolist() == [True, True, True, True, False]


def test_each_group_counts_once_between_groups() -> None:
    ids = torch.tensor([0, 0, 0, 1])
    known = torch.ones(4, dtype=torch.bool)
    # mean of 1 and 3, not of 1 1 1 3; population deviation 1
    z = standardised_between_groups(torch.tensor([1.0, 1.0, 1.0, 3.0]), known, ids, eps=0.0)
    assert z.tolist() == pytest.approx([-1, -1, -1, 1])


def test_unknown_groups_have_no_part_and_get_zero() -> None:
    known = torch.tensor([True, True, True, True, False])
    z = standardised_between_groups(torch.tensor([1.0, 1.0, 2.0, 2.0, 99.0]), known, IDS, eps=0.0)
    assert z.tolist() == pytest.approx([-1, -1, 1, 1, 0])


def test_equal_qualities_give_exact_zeros() -> None:
    known = torch.ones(5, dtype=torch.bool)
    for eps in (0.0, 1e-6):
        assert standardised_between_groups(torch.full((5,), 0.1), known, IDS, eps=eps).tolist() == [0] * 5


def test_a_batch_without_a_valid_value_changes_nothing() -> None:
    moments = MovingMoments(0.5)
    moments.update(torch.tensor([4.0]), torch.tensor([False]))
    assert not moments.seen
    moments.update(torch.tensor([4.0, 8.0, NAN]), torch.tensor([True, True, False]))
    assert (moments.mean, moments.std) == (6, 2)


def test_a_large_offset_loses_no_digits() -> None:
    moments = MovingMoments(0.5)
    for values in ([1e9, 1e9 + 2], [1e9 + 2, 1e9 + 4]):
        moments.update(torch.tensor(values, dtype=torch.float64), torch.tensor([True, True]))
    # moments of the two batches, offset left out: means 1 and 3, E[x^2] 2 and 10 -> 2 and 6: variance 6 - 4
    assert moments.mean - 1e9 == pytest.approx(2)
    assert moments.std == pytest.approx(math.sqrt(2))


def test_state_comes_back() -> None:
    moments, other = MovingMoments(0.9), MovingMoments(0.9)
    moments.update(torch.tensor([1.0, 2.0]), torch.tensor([True, True]))
    other.load_state_dict(moments.state_dict())
    assert other == moments
