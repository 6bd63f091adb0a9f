"""A growing penalty before the length limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.rewards.base import RewardShaper
from lit_group_rl.schedules.base import Clock, Number, require, require_number
from lit_group_rl.types import Problem, Recipe, RecipeError, RolloutBatch


def soft_overlong(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """0 up to ``limit - buffer`` tokens, then linear down to -1 at ``limit``, and -1 beyond.

        penalty = clamp(((limit - buffer) - length) / buffer, -1, 0)

    [B] -> [B] float64.  Source: DAPO, arXiv:2503.14476, eq. 13 (limit 20480, buffer 4096).
    """
    return (((limit - buffer) - lengths.double()) / buffer).clamp(-1.0, 0.0)


@dataclass(frozen=True)
class SoftOverlong(RewardShaper):
    """Adds coef * soft_overlong(length) to the score.  Groups have been filtered on the raw score by then."""

    buffer: float = 0.2
    """Tokens before the limit over which the penalty grows; below 1 it is a share of the limit.  DAPO: 0.2."""
    limit: int | None = None
    """Length with the full penalty, the end token included; null takes the sampler's max_new_tokens."""
    coef: Number = 1.0
    """Size of the full penalty; DAPO uses 1 beside a reward of +1 or -1."""

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)
        require(self.buffer > 0, self, "buffer", "must be above 0; remove the shaper to switch it off")
        require(self.buffer < 1 or self.buffer == int(self.buffer), self, "buffer", "must be a whole number of tokens")
        require(self.limit is None or self.limit >= 1, self, "limit", "must be at least 1")
        require(self.limit is None or self.buffer <= self.limit, self, "buffer", f"must not exceed limit={self.limit}")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        longest = getattr(recipe.parts.get("sampler"), "max_new_tokens", None)
        if longest is None:
            return
        if self.limit is None and self.buffer > longest:
            yield Problem(
                "model.shapers",
                f"SoftOverlong.buffer={self.buffer:g} exceeds the limit of {longest} tokens",
                "Lower buffer, or raise model.sampler.max_new_tokens",
            )
        if self.limit is not None and longest < self.limit:
            yield Problem(
                "model.shapers",
                f"SoftOverlong.limit={self.limit} is never reached: completions end at {longest} tokens",
                "Set limit to null or lower it to model.sampler.max_new_tokens",
                warning=True,
            )

    def shape(self, batch: RolloutBatch, clock: Clock) -> Tensor:
        limit = self.limit or batch.max_new_tokens
        if not limit:
            raise RecipeError(
                "model.shapers: SoftOverlong does not know the length limit, because the sampler leaves "
                "max_new_tokens of the batch at 0. Set SoftOverlong.limit"
            )
        buffer = max(1, round(self.buffer * limit)) if self.buffer < 1 else int(self.buffer)
        return clock.at(self.coef) * soft_overlong(batch.own_lengths, limit, buffer)
