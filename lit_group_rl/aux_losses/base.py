"""Terms beside the policy loss: divergence from a reference, entropy, likelihood of good answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.schedules.base import Number
from lit_group_rl.types import Component, LossContext, Problem, Recipe, RolloutBatch


class AuxLoss(Component):
    """One more loss per token, weighted by ``coef`` and aggregated over the tokens it selects."""

    coef: Number
    """Weight in the total loss."""
    whole_groups: ClassVar[bool] = False
    """Needs whole groups in a micro-batch."""
    whole_minibatch: ClassVar[bool] = False
    """Needs ``observe`` with the whole minibatch under the current policy before each update."""

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if self.coef == 0:
            yield Problem(
                f"{recipe.place(self)}.coef",
                "0 computes the term and leaves it out of the loss",
                "Set the whole entry to null, unless it is there to be logged",
                warning=True,
            )

    def observe(self, ctx: LossContext) -> None:
        """See all rows of this process's minibatch without gradient; gather over processes for statistics."""

    def selection(self, batch: RolloutBatch) -> Tensor:
        """[B, T] tokens the term is taken over; its normaliser counts these, over all micro-batches and processes."""
        return batch.mask

    def aggregator(self) -> LossAggregator | None:
        """How its tokens become one number; None: as the recipe's policy loss."""
        return None

    @abstractmethod
    def term(self, ctx: LossContext) -> Tensor:
        """[B, T] per-token value to minimise, with gradient."""
