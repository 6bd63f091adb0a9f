"""Plain policy gradient."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.types import POLICY, Bounds, LossContext, Problem, Recipe


@dataclass(frozen=True)
class Reinforce(Surrogate):
    """-A * logp.  With scores of 1 on reference answers: the negative log-likelihood of supervised training."""

    uses_bounds = False
    zero_without_advantage = True

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if recipe.updates_per_rollout > 1 and recipe.has_rows(POLICY):
            yield Problem(
                "model.surrogate",
                "Reinforce has no ratio, so after the first update it takes stale completions for fresh ones",
                "Set model.minibatches and model.ppo_epochs to 1, or use Clipped or ImportanceWeighted",
                warning=True,
            )

    def loss(self, ctx: LossContext, bounds: Bounds) -> Tensor:
        return -ctx.advantages * ctx.logp
