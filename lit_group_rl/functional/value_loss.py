"""Squared error of a critic, with the value clipping of PPO."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values: Tensor, returns: Tensor, old: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Per-token loss, without gradient into the targets:

        (V - R)^2 / 2       with ``clip`` c:  max((V - R)^2, (clamp(V, old - c, old + c) - R)^2) / 2

    The max is the pessimistic choice: a value that has moved further than c towards its target earns nothing more, one
    that has moved away from it is still pulled back.  Any shape, all equal; ``old`` is needed with ``clip`` only.

    Source: PPO as implemented in openai/baselines (ppo2), after Schulman et al., arXiv:1707.06347.
    """
    returns = returns.detach().to(values.dtype)
    squares = (values - returns) ** 2
    if clip is None:
        return squares / 2
    assert old is not None
    old = old.detach().to(values.dtype)
    clipped = old + (values - old).clamp(-clip, clip)
    return torch.maximum(squares, (clipped - returns) ** 2) / 2
