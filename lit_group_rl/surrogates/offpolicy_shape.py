"""Learning from answers that the policy did not write: LUFFY."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.schedules.base import require
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import EXPERT, Bounds, LossContext, Problem, Recipe


def shaped(probability: Tensor, gamma: float) -> Tensor:
    """f(p) = p / (p + gamma): its gradient gamma p / (p + gamma)^2 with respect to log p is largest at p = gamma."""
    return probability / (probability + gamma)


@dataclass(frozen=True)
class OffPolicyShape(Surrogate):
    """-f(p) A on expert rows, p the policy's probability of the token; -r A without a clip on the policy's own rows.

    The probability under the unknown author is taken as 1, so the ratio of an expert row is p itself; the shape keeps
    rare tokens of the expert from being ignored.  Expert rows are members of their group.

    Source: LUFFY, arXiv:2504.14945, sec. 3.2 (policy shaping).
    """

    gamma: float = 0.1
    """Where the gradient of an expert token is largest."""

    uses_bounds = False
    zero_without_advantage = True

    def __post_init__(self) -> None:
        require(self.gamma > 0, self, "gamma", "must be above 0")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if not recipe.has_rows(EXPERT):
            yield Problem(
                "model.surrogate",
                "OffPolicyShape shapes expert rows, and the sampler gives none: what is left has no trust region",
                "Use a sampler that adds expert rows, or set surrogate to Clipped",
                warning=True,
            )

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        expert = (ctx.batch.row_role == EXPERT)[:, None]
        value = torch.where(expert, shaped(ctx.logp.exp(), self.gamma), ctx.ratio)
        return -value * ctx.advantages
