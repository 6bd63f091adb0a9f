"""Hold the tokens that would lower the entropy most near the sampling policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.functional.collectives import all_sum
from lit_group_rl.functional.selection import covariance, largest, same_rows
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import LossContext, Problem, Recipe


@dataclass
class KLCov(AuxLoss):
    """coef * |logp - old_logp| on the tokens whose log-prob and advantage vary together most, 0 on the others.

    Normalised like the policy loss, over all tokens.  Use with the unclipped surrogate: there is no clip beside it.

    Source: KL-Cov, arXiv:2505.22617, sec. 4.3.
    """

    coef: Number = 1.0
    """beta of the penalty."""
    share: float = 2e-3
    """k: share of the minibatch's tokens that are held, at least one (2e-3 at 7B, 2e-4 at 32B)."""
    _held: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    needs = frozenset({"old_logp"})
    whole_minibatch = True

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)
        require(0 < self.share <= 1, self, "share", "must lie in (0, 1]")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        if recipe.updates_per_rollout == 1:
            yield Problem(
                recipe.place(self),
                "with one update per rollout logp equals old_logp, so KLCov has no gradient",
                "Set model.minibatches or model.ppo_epochs above 1, or this entry to null",
                warning=True,
            )

    def observe(self, ctx: LossContext) -> None:
        count = max(1, int(self.share * int(all_sum(ctx.mask.sum()))))
        cov = covariance(ctx.logp.detach(), ctx.advantages, ctx.mask)
        self._held = largest(cov, ctx.mask, count), ctx.batch.row_ids

    def term(self, ctx: LossContext) -> Tensor:
        assert self._held is not None
        assert ctx.batch.old_logp is not None
        held = same_rows(*self._held, ctx.batch.row_ids, ctx.logp.shape[1])
        distance = (ctx.logp - ctx.batch.old_logp.to(ctx.logp.dtype)).abs()
        return torch.where(held, distance, torch.zeros_like(distance))
