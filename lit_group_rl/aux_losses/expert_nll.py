"""Imitate given answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aggregators.token_mean import TokenMean
from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.schedules.base import Number, require_number
from lit_group_rl.types import EXPERT, LossContext, Problem, Recipe, RolloutBatch


@dataclass(frozen=True)
class ExpertNLL(AuxLoss):
    """-logp on expert rows, divided by the number of their tokens in the whole minibatch; 0 without such rows.

    ``soften`` weighs each token by p (1 - p), without gradient: what the policy knows already, and what would upset
    it, counts less.  CHORD's (1 - mu) RL + mu SFT is ``coef`` = mu / (1 - mu) at a learning rate of (1 - mu) times.

    Source: CHORD, arXiv:2508.11408.
    """

    coef: Number = 0.1
    """Weight beside the policy loss; a schedule lets it fade."""
    soften: bool = True
    """Weigh tokens by p (1 - p)."""

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        if not recipe.has_rows(EXPERT):
            yield Problem(
                recipe.place(self),
                "ExpertNLL imitates expert rows, and the sampler gives none, so it has no effect",
                "Use a sampler that adds expert rows, or set it to null",
                warning=True,
            )

    def selection(self, batch: RolloutBatch) -> Tensor:
        return batch.mask & (batch.row_role == EXPERT)[:, None]

    def aggregator(self) -> LossAggregator:
        return TokenMean()

    def term(self, ctx: LossContext) -> Tensor:
        if not self.soften:
            return -ctx.logp
        p = ctx.logp.detach().exp()
        return -p * (1 - p) * ctx.logp
