"""Exponential moving averages of numbers and of a model's weights."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

Value = TypeVar("Value", float, Tensor)


def ema(average: Value, value: Value, decay: float) -> Value:
    """decay * average + (1 - decay) * value: 0 forgets at once, 1 never learns.  Numbers, or tensors of one shape."""
    return decay * average + (1 - decay) * value


@torch.no_grad()
def ema_weights(average: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the averaged copy towards the model, parameter by parameter, in place; buffers are copied."""
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.mul_(decay).add_(fast.detach().to(slow.dtype), alpha=1 - decay)
    for held, now in zip(average.buffers(), model.buffers(), strict=True):
        held.copy_(now)
