"""Right against wrong members of a group as a classification: REAL."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.functional.groups import group_index
from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.schedules.base import require
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import Bounds, LossContext


def group_classification_loss(scores: Tensor, solved: Tensor, group_ids: Tensor, valid: Tensor, tau: float) -> Tensor:
    """log(1 + sum over right of exp(-s / tau)) + log(1 + sum over wrong of exp(s / tau)), per group.

    ``scores`` [B] with gradient, rows that are not valid left out.  -> [B], each row with its group's value.
    """
    index, k = group_index(group_ids)
    rows = torch.arange(len(scores), device=scores.device)
    total = scores.new_zeros(k)
    for member, sign in ((solved & valid, -1.0), (~solved & valid, 1.0)):
        # one column per row and one of zeros for the 1: a plain log-sum-exp, which cannot overflow
        table = scores.new_full((k, len(scores) + 1), float("-inf"))
        table[:, -1] = 0.0
        table = table.index_put((index[member], rows[member]), sign * scores[member] / tau)
        total = total + table.logsumexp(1)
    return total[index]


@dataclass(frozen=True)
class GroupClassification(Surrogate):
    """Raises the ratio of right members and lowers that of wrong ones; the advantages have no part in it.

    With the sequence-mean aggregator the loss is the mean over groups.  Needs whole groups in a micro-batch.

    Source: REAL, arXiv:2602.05630.
    """

    tau: float = 0.5
    """Temperature of the scores, which are the rows' mean log-ratios."""

    whole_groups = True
    uses_bounds = False

    def __post_init__(self) -> None:
        require(self.tau > 0, self, "tau", "must be above 0")

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        assert ctx.batch.solved is not None
        valid = ctx.batch.counted
        scores = masked_mean(ctx.log_ratio, ctx.mask, dim=1)
        per_group = group_classification_loss(scores, ctx.batch.solved, ctx.batch.group_ids, valid, self.tau)
        index, k = group_index(ctx.batch.group_ids)
        members = torch.zeros(k, dtype=per_group.dtype, device=per_group.device)
        members = members.index_add(0, index, ctx.mask.any(1).to(per_group.dtype))[index].clamp(min=1)
        # a mean over rows of this is the mean over groups
        per_row = per_group / members * (ctx.counts.rows / max(ctx.counts.groups, 1.0))
        return per_row[:, None].expand_as(ctx.logp)
