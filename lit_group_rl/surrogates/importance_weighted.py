"""REINFORCE with a clipped importance weight: CISPO, TOPR, DPPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


def importance_weighted_loss(ratio: Tensor, logp: Tensor, advantages: Tensor, bounds: Bounds) -> Tensor:
    """-sg[clip(r, low, high)] A logp: the weight is clipped, the gradient of the token is not.

    ``bounds.cap`` is one more upper limit of the weight; where ``bounds.keep`` is False the loss is 0.
    [B, T] -> [B, T].

    Source: CISPO (MiniMax-M1), arXiv:2506.13585, eq. 4.
    """
    weight = ratio.detach()
    if bounds.low is not None or bounds.high is not None:
        weight = weight.clamp(bounds.low, bounds.high)
    if bounds.cap is not None:
        weight = weight.clamp(max=bounds.cap)
    loss = -weight * advantages * logp
    return loss if bounds.keep is None else torch.where(bounds.keep, loss, torch.zeros_like(loss))


@dataclass(frozen=True)
class ImportanceWeighted(Surrogate):
    """Every token keeps its gradient; the trust region bounds the weight on it."""

    zero_without_advantage = True

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        return importance_weighted_loss(ctx.ratio, ctx.logp, ctx.advantages, bounds)
