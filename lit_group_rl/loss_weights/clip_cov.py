"""Hold back a few tokens that would lower the entropy most."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from lit_group_rl.functional.collectives import all_sum
from lit_group_rl.functional.rng import seed_of, uniforms
from lit_group_rl.functional.selection import covariance, largest, same_rows
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.schedules.base import require, require_number
from lit_group_rl.types import LossContext


def clip_cov_candidates(
    covariances: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cov: tuple[float, float],
    clip: tuple[float, float],
) -> Tensor:
    """Tokens with cov[0] < covariance < cov[1] that a clip to [1 - clip[0], 1 + clip[1]] has not stopped already.

    [B, T] -> [B, T] bool.
    """
    clipped = ((advantages > 0) & (ratio > 1 + clip[1])) | ((advantages < 0) & (ratio < 1 - clip[0]))
    return mask & ~clipped & (covariances > cov[0]) & (covariances < cov[1])


@dataclass
class ClipCov(LossWeight):
    """0 for a random few of the tokens whose log-prob and advantage vary together most, 1 for the others.

    The draw is a function of (seed, step, row, token), so it does not depend on how the minibatch is cut.

    Source: Clip-Cov, arXiv:2505.22617, sec. 4.2.
    """

    share: float = 2e-4
    """r: share of the minibatch's tokens that are held back, at least one."""
    cov_low: float = 1.0
    """Only tokens with a covariance above this."""
    cov_high: float = 5.0
    """Only tokens with a covariance below this."""
    clip_low: float = 0.2
    """epsilon_low of the recipe's clip: what it stops already is not drawn."""
    clip_high: float = 0.2
    """epsilon_high of the recipe's clip."""
    _dropped: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False, compare=False)

    needs = frozenset({"old_logp"})
    whole_minibatch = True

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, self, "share", "must lie in (0, 1]")
        require(self.cov_low < self.cov_high, self, "cov_low", "must be below cov_high")
        require_number(self, "clip_low", low=0.0, high=1.0)
        require_number(self, "clip_high", low=0.0)

    def observe(self, ctx: LossContext) -> None:
        assert ctx.batch.old_logp is not None
        logp = ctx.logp.detach()
        candidates = clip_cov_candidates(
            covariance(logp, ctx.advantages, ctx.mask),
            (logp - ctx.batch.old_logp.to(logp.dtype)).exp(),
            ctx.advantages,
            ctx.mask,
            (self.cov_low, self.cov_high),
            (self.clip_low, self.clip_high),
        )
        keys = [seed_of(ctx.seed, "clip_cov", ctx.clock.step, row) for row in ctx.batch.row_ids.tolist()]
        draw = uniforms(keys, 0, logp.shape[1]).to(logp.device)
        count = max(1, int(self.share * int(all_sum(ctx.mask.sum()))))
        self._dropped = largest(draw, candidates, count), ctx.batch.row_ids

    def weight(self, ctx: LossContext) -> Tensor:
        assert self._dropped is not None
        dropped = same_rows(*self._dropped, ctx.batch.row_ids, ctx.logp.shape[1])
        return (~dropped).to(ctx.logp.dtype)
