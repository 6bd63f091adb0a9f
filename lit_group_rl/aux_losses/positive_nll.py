"""Imitate the policy's own right answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aggregators.token_mean import TokenMean
from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.schedules.base import Number, require_number
from lit_group_rl.types import POLICY, LossContext, RolloutBatch


@dataclass(frozen=True)
class PositiveNLL(AuxLoss):
    """-logp on solved completions, divided by the number of their tokens in the whole minibatch; 0 if none is solved.

    Source: VAPO, arXiv:2504.05118, sec. 4.3 (positive example language-model loss).
    """

    coef: Number = 0.1
    """mu: weight beside the policy loss."""

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)

    def selection(self, batch: RolloutBatch) -> Tensor:
        assert batch.solved is not None
        return batch.mask & (batch.solved & (batch.row_role == POLICY))[:, None]

    def aggregator(self) -> LossAggregator:
        return TokenMean()

    def term(self, ctx: LossContext) -> Tensor:
        return -ctx.logp
