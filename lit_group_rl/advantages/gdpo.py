"""The advantage of GDPO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.advantages.group_relative import group_relative
from lit_group_rl.functional.collectives import all_rows
from lit_group_rl.functional.masked import masked_mean, masked_std
from lit_group_rl.schedules.base import require, require_number
from lit_group_rl.types import Advantages, Problem, Recipe, RolloutBatch


def normalised_sum(
    columns: Mapping[str, Tensor],
    weights: Mapping[str, float],
    group_ids: Tensor,
    valid: Tensor,
    *,
    ddof: int = 1,
    eps: float = 1e-4,
) -> Tensor:
    """Normalise each reward inside its group, then add: S[i] = sum over k of w[k] * z[k][i].

    An abstention (NaN) adds 0 and has no part in that reward's statistics.  {name: [B]} -> [B] float64.
    """
    total = torch.zeros(len(group_ids), dtype=torch.float64, device=group_ids.device)
    for name, weight in weights.items():
        column = columns[name]
        total += weight * group_relative(column, group_ids, valid & ~column.isnan(), ddof=ddof, eps=eps)
    return total


def batch_normalised(values: Tensor, valid: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """(v - mean) / (std + eps) over the valid rows of all processes, 0 for the others.  [B] -> [B] float64."""
    values = values.double()
    everyone, counts = all_rows(values), all_rows(valid)
    normal = (values - masked_mean(everyone, counts)) / (masked_std(everyone, counts, ddof=ddof) + eps)
    return torch.where(valid, normal, 0.0)


@dataclass(frozen=True)
class GDPO(AdvantageEstimator):
    """Normalises each reward on its own before adding them, so that different mixtures keep different advantages.

    Shaping and KL that go into the total score have no part in it.

    Source: GDPO, arXiv:2601.05242, sec. 3; the last normalisation is over completions, as in TRL and NeMo-RL.
    """

    weights: dict[str, float]
    """Reward of the recipe -> weight of its normalised score."""
    ddof: int = 1
    """Divide the squares by n - ddof."""
    eps: float = 1e-4
    """Added to every deviation."""

    needs_group = True

    def __post_init__(self) -> None:
        require(len(self.weights) > 0, self, "weights", "must name at least one reward")
        require(self.ddof in (0, 1), self, "ddof", "must be 0 or 1")
        require_number(self, "eps", low=0.0)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        yield from super().checks(recipe)
        known = recipe.parts.get("rewards") or {}
        for name in self.weights:
            if name not in known:
                yield Problem(
                    f"model.advantage.weights.{name}",
                    "the recipe has no reward of this name",
                    f"Use one of: {', '.join(known)}",
                )

    def estimate(self, batch: RolloutBatch) -> Advantages:
        valid = batch.counted
        total = normalised_sum(batch.rewards, self.weights, batch.group_ids, valid, ddof=self.ddof, eps=self.eps)
        return Advantages(per_token(batch_normalised(total, valid, ddof=self.ddof, eps=self.eps), batch))
