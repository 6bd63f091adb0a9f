"""The critic's squared error and its clip."""

import pytest
import torch

from lit_group_rl.functional.value_loss import value_loss


def one(new, returns, old=None, clip=None):
    as_tensor = [None if x is None else torch.tensor([x]) for x in (new, returns, old)]
    return float(value_loss(as_tensor[0], as_tensor[1], as_tensor[2], clip))


def test_without_a_clip_it_is_half_the_square():
    assert one(1.0, 8.0) == 24.5  # (1 - 8)^2 / 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (3.0, 1.0, 24.5),  # away from 8: clipped value 2.5, max(49, 5.5^2 = 30.25) / 2
        (1.0, 3.0, 21.125),  # towards it: clipped value 1.5, max(25, 6.5^2 = 42.25) / 2
    ],
)
def test_the_clip_takes_the_larger_of_the_two(old, new, expected):
    """Known fault B33: a min in place of the max gives 15.125 and 12.5."""
    assert one(new, 8.0, old, 0.5) == expected


def test_the_target_takes_no_gradient():
    """Known fault B34."""
    value = torch.tensor([0.5], requires_grad=True)
    target = torch.tensor([1.0], requires_grad=True)
    value_loss(value, target).sum().backward()
    assert value.grad.item() == -0.5  # V - R
    assert target.grad is None


def test_a_value_past_the_clip_is_left_alone_and_one_that_strayed_is_pulled_back():
    far = torch.tensor([3.0, 1.0], requires_grad=True)
    value_loss(far, torch.tensor([8.0, 8.0]), torch.tensor([1.0, 3.0]), 0.5).sum().backward()
    assert far.grad.tolist() == [0.0, -7.0]  # 1 - 8
