"""Scores to advantages."""

from abc import abstractmethod
from collections.abc import Iterable

from torch import Tensor

from lit_group_rl.types import Advantages, Component, Problem, Recipe, RolloutBatch


class AdvantageEstimator(Component):
    """Turns the scores of a rollout into one advantage per token."""

    needs_group: bool = False
    """Compares the members of a group, so a group of one cannot be used."""

    @abstractmethod
    def estimate(self, batch: RolloutBatch) -> Advantages:
        """Advantages [B, T], and returns [B, T] where a critic is trained on them.

        Rows that are not ``batch.counted`` get exactly 0 and have no part in any statistic.
        """

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if self.needs_group and recipe.group_size < 2:
            yield Problem(
                "model.sampler.group_size",
                f"{type(self).__name__} compares the completions of a prompt and needs at least 2, got 1",
                "Raise group_size, or use an advantage with a critic",
            )
        if "values" in self.needs and recipe.parts.get("critic") is None:
            yield Problem(
                "model.critic",
                f"{type(self).__name__} reads the values of a critic, and the recipe has none",
                "Set critic to LightCritic or ValueModel, or use an advantage without one (GroupRelative)",
            )


def per_token(row_values: Tensor, batch: RolloutBatch) -> Tensor:
    """The same advantage for every trained token of a row: [B] -> [B, T] float64, exactly 0 elsewhere."""
    import torch

    return torch.where(batch.mask & batch.counted[:, None], row_values.double()[:, None], 0.0)
