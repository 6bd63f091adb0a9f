"""The clipped surrogate of PPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


def clipped_loss(ratio: Tensor, advantages: Tensor, bounds: Bounds) -> Tensor:
    """max(-r A, -clip(r, low, high) A), with the optional two-sided cap, dual clip and keep-mask of ``bounds``.

        cap:   r in the unclipped branch becomes min(r, cap)             (arXiv:2505.07291)
        dual:  for A < 0 the loss is at most -dual * A                   (arXiv:1912.09729)
        keep:  False gives loss 0 and no gradient

    [B, T] -> [B, T].  Source: PPO, arXiv:1707.06347, eq. 7.
    """
    free = ratio if bounds.cap is None else ratio.clamp(max=bounds.cap)
    loss = -free * advantages
    if bounds.low is not None or bounds.high is not None:
        # clamp, not minimum and maximum: these halve the gradient of a ratio that equals its bound
        inside = ratio.clamp(bounds.low, bounds.high)
        loss = torch.maximum(loss, -inside * advantages)
    if bounds.dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -bounds.dual * advantages), loss)
    return loss if bounds.keep is None else torch.where(bounds.keep, loss, torch.zeros_like(loss))


@dataclass(frozen=True)
class Clipped(Surrogate):
    """PPO's pessimistic minimum of the free and the clipped objective."""

    zero_without_advantage = True

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        return clipped_loss(ctx.ratio, ctx.advantages, bounds)
