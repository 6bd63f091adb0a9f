from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.functional.pass_at_k import none_right, pass_at_k


def test_two_of_five() -> None:
    """Known fault B69."""
    # 1 - 3/5; 1 - C(3,2)/C(5,2) = 1 - 3/10; three wrong cannot fill five. With replacement it would be 0.4, 0.64, 0.922
    assert [pass_at_k(5, 2, k) for k in (1, 2, 5)] == pytest.approx([0.4, 0.7, 1.0])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_equals_the_share_of_subsets_with_a_right_member(case: tuple[int, int, int]) -> None:
    n, right, k = case
    subsets = list(combinations([1] * right + [0] * (n - right), k))
    assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("k", [0, 6])
def test_a_k_that_cannot_be_estimated_is_refused(k: int) -> None:
    """Known fault B69, k above n."""
    with pytest.raises(ValueError, match=f"pass@{k} cannot be estimated from 5 completions"):
        pass_at_k(5, 2, k)


def test_the_ends_are_exact() -> None:
    total = torch.tensor([1000, 1000])
    assert none_right(total, torch.tensor([1000, 3]), 8).tolist() == [1.0, 0.0]
