"""The analytic advantage of pass@k training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.functional.groups import group_size, group_sum
from lit_group_rl.functional.pass_at_k import none_right
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Advantages, Problem, Recipe, RolloutBatch


def pass_at_k_advantage(solved: Tensor, group_ids: Tensor, valid: Tensor | None = None, *, k: int) -> Tensor:
    """Mean advantage of a completion over all subsets of k that hold it, a subset being right if any member is.

        p = 1 - C(w, k) / C(n, k)     s = sqrt(p (1 - p))     w wrong of n
        A(right) = (1 - p) / s        A(wrong) = (1 - p - C(w-1, k-1) / C(n-1, k-1)) / s

    s = 0 (nothing solved, or too few wrong to fill a subset): 0.  A k above n counts as n.  [B] bool -> [B] float64.

    Source: Pass@k training, arXiv:2508.10751, sec. 2.3 (analytical derivation).
    """
    valid = torch.ones_like(group_ids, dtype=torch.bool) if valid is None else valid
    n = group_size(group_ids, valid)
    wrong = group_sum((~solved).double(), group_ids, valid)
    size = n.clamp(max=k)
    fail = none_right(n, wrong, k)
    with_me = none_right((n - 1).clamp(min=0), (wrong - 1).clamp(min=0), (size - 1).clamp(min=0))
    s = (fail * (1 - fail)).sqrt()
    values = torch.where(solved, fail, fail - with_me) / torch.where(s > 0, s, 1.0)
    return torch.where(valid & (s > 0), values, 0.0)


@dataclass(frozen=True)
class PassAtK(AdvantageEstimator):
    """Rewards a prompt's completions for solving it at least once in k draws.  Reads ``solved``, not the score."""

    k: int
    """Size of the subsets; the paper uses 4 of 8."""

    needs_group = True

    def __post_init__(self) -> None:
        require(self.k >= 1, self, "k", "must be at least 1")

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        if self.k > recipe.group_size:
            yield Problem(
                "model.advantage.k",
                f"subsets of {self.k} cannot be drawn from a group of {recipe.group_size}",
                f"Lower k, or raise model.sampler.group_size to at least {self.k}",
            )
        elif self.k == recipe.group_size:
            yield Problem(
                "model.advantage.k",
                f"the only subset of {self.k} is the whole group, so every advantage is 0",
                f"Lower k, or raise model.sampler.group_size above {self.k}",
                warning=True,
            )

    def estimate(self, batch: RolloutBatch) -> Advantages:
        assert batch.solved is not None
        return Advantages(per_token(pass_at_k_advantage(batch.solved, batch.group_ids, batch.counted, k=self.k), batch))
