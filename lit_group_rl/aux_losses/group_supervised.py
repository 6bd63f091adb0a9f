"""Imitate the better members of a group, the more the better the group is: the supervised term of gspo_supervised."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.functional.groups import group_size
from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.functional.quality import group_quality, standardised_between_groups
from lit_group_rl.schedules.base import Clock, Number, require_number
from lit_group_rl.types import Counts, LossContext, Problem, Recipe, RolloutBatch


def imitation_weight(quality: Tensor, positive: Tensor, group_ids: Tensor) -> Tensor:
    """max(0, q) / number of positive members for the positive members of a group, 0 for the others.

    A group's weights add up to its quality; a group without positive members has none.  [B], [B] bool -> [B] float64.
    """
    share = quality.double().clamp(min=0.0) / group_size(group_ids, positive).clamp(min=1)
    return torch.where(positive, share, 0.0)


@dataclass(frozen=True)
class _RowMeansPerGroup(LossAggregator):
    """sum_i (sum_t x m / l_i) / number of groups."""

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        return masked_mean(values, mask, dim=1).sum() / max(counts.groups, 1.0)


@dataclass(frozen=True)
class GroupSupervised(AuxLoss):
    """Negative log-likelihood of the members with a positive advantage, weighted by the quality of their group.

        L = -(1 / P) sum over groups g of q[g] * mean over i in g with A[i] > 0 of (1 / l[i]) sum_t logp[i, t]

    q[g] is the mean of the reward column ``quality`` over the group; P counts all groups of the minibatch, those
    without positive members too.  A quality below 0 imitates nothing.  The more weight, the more this is behaviour
    cloning of the policy's own better samples; with q = 1 it is VAPO's positive-example loss with a mean per row.

    Source: an interview note ("groupwise supervised policy optimization", weight 0.1 to 0.3); no publication of that
    description was found.  The note's literal term, q added to the loss or to all rewards of a group, has no gradient.
    """

    quality: str
    """Name of the reward whose group mean is the quality; give it weight 0 to keep it out of the score."""
    coef: Number = 0.2
    """lambda: weight in the total loss."""
    standardise: bool = False
    """Standardise the quality between the groups of the step; for scores without a scale, as of a reward model."""

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        yield from recipe.missing_reward("model.aux_losses", self.quality)

    @property
    def _feature(self) -> str:
        return f"group_supervised/{self.quality}/{self.standardise}"

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:
        assert batch.advantages is not None
        quality, known = group_quality(batch.rewards[self.quality], batch.group_ids, batch.counted)
        if self.standardise:
            quality = standardised_between_groups(quality, known, batch.group_ids)
        positive = batch.counted & (masked_mean(batch.advantages, batch.mask, dim=1) > 0)
        batch.features[self._feature] = imitation_weight(quality, positive, batch.group_ids)

    def aggregator(self) -> LossAggregator:
        return _RowMeansPerGroup()

    def term(self, ctx: LossContext) -> Tensor:
        weight = ctx.batch.features[self._feature].to(ctx.logp.dtype)
        return -weight[:, None] * ctx.logp
