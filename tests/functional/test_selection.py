import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.functional.selection import covariance, largest, quantile, same_rows

VALUES = torch.tensor([[3.0, 1.0, 100.0], [2.0, 4.0, -7.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 0]]).bool()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-5, 5, allow_nan=False), min_size=1, max_size=9), st.floats(0, 1))
def test_quantile_equals_torch(values: list[float], q: float) -> None:
    row = torch.tensor([values], dtype=torch.float64)
    expected = torch.quantile(row, q)
    torch.testing.assert_close(quantile(row, torch.ones_like(row).bool(), q), expected, rtol=1e-9, atol=1e-9)


def test_quantile_of_the_masked_values() -> None:
    assert quantile(VALUES, MASK, 0.5).item() == 2.5  # of 1, 2, 3, 4
    assert quantile(VALUES, torch.zeros_like(MASK), 0.5).item() == float("inf")


def test_largest_takes_the_count_asked_for_and_what_equals_the_last() -> None:
    assert largest(VALUES, MASK, 2).tolist() == [[True, False, False], [False, True, False]]
    assert largest(torch.ones(1, 3), torch.ones(1, 3).bool(), 2).all()
    assert not largest(VALUES, MASK, 0).any()
    assert not largest(VALUES, torch.zeros_like(MASK), 2).any()
    assert torch.equal(largest(VALUES, MASK, 99), MASK)


def test_covariance_of_two_tokens() -> None:
    # mean A = 2, mean logp = -3: (1 - 2)(-1 + 3) = -2, (3 - 2)(-5 + 3) = -2
    mask = torch.tensor([[1, 1, 0]]).bool()
    cov = covariance(torch.tensor([[-1.0, -5.0, 9.0]]), torch.tensor([[1.0, 3.0, 50.0]]), mask)
    assert cov.tolist()[0] == pytest.approx([-2, -2, 0])


def test_same_rows_finds_a_choice_again_after_reordering_and_trimming() -> None:
    chosen = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]]).bool()
    found = same_rows(chosen, torch.tensor([4, 9, 6]), torch.tensor([6, 4]), 2)
    assert found.tolist() == [[True, True], [True, False]]
