"""Weigh a token by where the policy has moved after it: FIPO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.functional.returns import discounted_return
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import require
from lit_group_rl.types import LossContext, Problem, Recipe


def future_kl(log_ratio: Tensor, mask: Tensor, half_life: float) -> Tensor:
    """sum over k >= t of gamma^(k - t) * log_ratio[k], gamma = 2^(-1 / half_life).  [B, T], 0 off the mask."""
    return discounted_return(log_ratio.detach(), mask, 2 ** (-1 / half_life))


@dataclass(frozen=True)
class FutureKL(LossWeight):
    """clip(exp(future_kl), 1, 1 + clip): tokens that lead to parts now more likely weigh more.

    Source: FIPO, arXiv:2603.19835.
    """

    half_life: float = 32.0
    """Tokens after which a later token counts half."""
    clip: float = 0.2
    """How far the weight may leave 1."""
    high_only: bool = True
    """Bound below by 1; false: by 1 - clip."""

    needs = frozenset({"old_logp"})

    def __post_init__(self) -> None:
        require(self.half_life > 0, self, "half_life", "must be above 0")
        require(0 <= self.clip < 1, self, "clip", "must lie in [0, 1)")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if recipe.updates_per_rollout == 1:
            yield Problem(
                recipe.place(self),
                "with one update per rollout logp equals old_logp, and every weight of FutureKL is 1",
                "Set model.minibatches or model.ppo_epochs above 1, or this entry to null",
                warning=True,
            )

    def weight(self, ctx: LossContext) -> Tensor:
        assert ctx.batch.old_logp is not None
        log_ratio = ctx.logp.detach() - ctx.batch.old_logp.to(ctx.logp.dtype)
        low = 1.0 if self.high_only else 1 - self.clip
        return future_kl(log_ratio, ctx.mask, self.half_life).clamp(-20.0, 20.0).exp().clamp(low, 1 + self.clip)
