"""Moving averages of weights."""

import pytest
import torch
from torch import nn

from lit_group_rl.functional.ema import ema, ema_weights


def test_the_extremes_forget_all_or_nothing():
    assert ema(2.0, 6.0, 0.0) == 6.0
    assert ema(2.0, 6.0, 1.0) == 2.0
    assert ema(2.0, 6.0, 0.75) == 3.0  # 1.5 + 1.5


def test_weights_follow_the_recursion_and_take_no_gradient():
    average, model = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(average.weight)
    nn.init.ones_(model.weight)
    seen = []
    for _ in range(3):
        ema_weights(average, model, 0.9)
        seen.append(average.weight.item())
    assert seen == pytest.approx([0.1, 0.19, 0.271])  # 1 - 0.9^k
    assert model.weight.item() == 1.0


def test_buffers_are_copied():
    average, model = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    model.running_mean.copy_(torch.tensor([3.0, 4.0]))
    ema_weights(average, model, 0.9)
    assert average.running_mean.tolist() == [3.0, 4.0]
