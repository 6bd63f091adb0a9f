"""Train on the tokens at which the policy hesitates."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from lit_group_rl.functional.selection import quantile, same_rows
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import require
from lit_group_rl.types import LossContext


@dataclass
class EntropyQuantile(LossWeight):
    """1 for the ``share`` of tokens with the highest entropy in the minibatch, 0 for the others.

    The normalisers still count all tokens, as in the paper.

    Source: beyond the 80/20 rule, arXiv:2506.01939, eq. 5.
    """

    share: float = 0.2
    """rho: share of tokens that are trained on."""
    _chosen: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    needs = frozenset({"entropy"})
    whole_minibatch = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, self, "share", "must lie in (0, 1]")

    def observe(self, ctx: LossContext) -> None:
        assert ctx.entropy is not None
        entropy = ctx.entropy.detach()
        self._chosen = ctx.mask & (entropy >= quantile(entropy, ctx.mask, 1 - self.share)), ctx.batch.row_ids

    def weight(self, ctx: LossContext) -> Tensor:
        assert self._chosen is not None
        return same_rows(*self._chosen, ctx.batch.row_ids, ctx.logp.shape[1]).to(ctx.logp.dtype)
