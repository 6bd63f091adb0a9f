import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.functional.returns import discounted_return, gae, last_token, length_adaptive_lambda, whiten


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_discounted_return() -> None:
    # 4; 2 + 4/2 = 4; 1 + 4/2 = 3
    assert discounted_return(row(1, 2, 4), row(1, 1, 1).bool(), 0.5).tolist() == [[3, 4, 4]]


def test_discounted_return_steps_over_tokens_that_do_not_count() -> None:
    assert discounted_return(row(1, 99, 2, 4, 7), row(1, 0, 1, 1, 0).bool(), 0.5).tolist() == [[3, 0, 4, 4, 0]]


def test_gae_never_reads_what_the_critic_says_off_the_mask() -> None:
    # gamma 1, lambda 0.9: delta1 = 1 - 0.4 = 0.6; delta0 = 0 + 0.4 - 0.2 = 0.2; A0 = 0.2 + 0.9 * 0.6 = 0.74
    advantages = gae(row(0, 1, 0), row(0.2, 0.4, 50), row(1, 1, 0).bool(), 1.0, 0.9)
    assert advantages.tolist()[0] == pytest.approx([0.74, 0.6, 0.0], abs=1e-12)


def test_gae_carries_value_and_accumulator_through_untrained_tokens() -> None:
    plain = gae(row(0, 1), row(0.2, 0.4), row(1, 1).bool(), 0.9, 0.8)
    gap = gae(row(0, 5, 6, 1), row(0.2, 50, 60, 0.4), row(1, 0, 0, 1).bool(), 0.9, 0.8)
    assert gap[0, [0, 3]].tolist() == plain[0].tolist()
    assert gap[0, [1, 2]].tolist() == [0, 0]


numbers = st.lists(st.floats(-2, 2, allow_nan=False), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(numbers, st.floats(0.1, 1.0))
def test_gae_with_lambda_one_is_return_minus_value_and_with_zero_the_td_error(rewards: list, gamma: float) -> None:
    r = torch.tensor([rewards], dtype=torch.float64)
    values = r.flip(1) * 0.3
    mask = torch.ones_like(r, dtype=torch.bool)
    torch.testing.assert_close(gae(r, values, mask, gamma, 1.0), discounted_return(r, mask, gamma) - values)
    after = torch.cat([values[:, 1:], torch.zeros(1, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(gae(r, values, mask, gamma, 0.0), r + gamma * after - values)


def test_gae_gives_no_gradient_to_the_critic() -> None:
    values = row(0.5).requires_grad_()
    assert not gae(row(1), values, row(1).bool(), 1.0, 0.95).requires_grad


def test_length_adaptive_lambda_clamps_short_completions_to_zero() -> None:
    # 1 - 1 / (0.05 * 40) = 0.5; at 20 tokens exactly 0; at 0 tokens no division by zero
    assert length_adaptive_lambda(torch.tensor([0, 1, 20, 40]), 0.05).tolist() == pytest.approx([0, 0, 0, 0.5])


def test_last_token_of_each_row() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()
    assert last_token(mask).tolist() == [[False, True, False], [False, False, True], [False, False, False]]


def test_whiten() -> None:
    # 1, 2, 6 under the mask: mean 3, variance 14 / 2 = 7
    out = whiten(torch.tensor([[1.0, 2.0, 9.0], [6.0, 0.0, 0.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool(), eps=0.0)
    root = 7**0.5
    assert out.flatten().tolist() == pytest.approx([-2 / root, -1 / root, 0, 3 / root, 0, 0], abs=1e-12)


def test_whiten_of_equal_values_or_of_nothing_is_exact_zero() -> None:
    values = torch.full((1, 7), 0.7, dtype=torch.float32)
    assert not whiten(values, torch.ones(1, 7).bool(), eps=1e-30).any()
    assert not whiten(values, torch.zeros(1, 7).bool()).any()
