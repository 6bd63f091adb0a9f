"""Leave completions without an end out of the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import LossContext, RolloutBatch


@dataclass(frozen=True)
class TruncatedMask(LossWeight):
    """Removes truncated rows from the mask before anything is counted, so that they leave the normalisers too.

    A factor of 0 would leave their tokens in the denominator.  Auxiliary losses do not see such rows either.  Their
    score still takes part in the baseline of their group, as in the paper and in TRL.

    Source: overlong filtering, DAPO, arXiv:2503.14476, sec. 3.4.
    """

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        batch.mask = batch.mask & ~batch.truncated[:, None]

    def weight(self, ctx: LossContext) -> Tensor:
        return torch.ones_like(ctx.logp).detach()
