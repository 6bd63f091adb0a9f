"""Models beside the policy that learn too: critics, and the evaluator of the dual-agent recipe."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from lit_group_rl.schedules.base import Number
from lit_group_rl.types import Component, LossContext, Problem, Recipe, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


class AuxiliaryModel(nn.Module, Component):  # in the other order FSDP2 cannot assign to __class__
    """A model with its own loss and learning rate.  Its parameters and buffers land in the checkpoint by themselves;
    plain data belongs into a nested component with a ``state_dict`` of its own.

    Every forward with gradient goes through ``__call__``, so that sharding sees it.
    """

    learning_rate: Number
    """Of its own parameter group; the optimizer's other options are the policy's."""
    micro_batch_tokens: int = 16384
    """Padded tokens in memory at once when a whole rollout is annotated; the module sets it to its own."""

    @abstractmethod
    def build(self, policy: HFPolicy) -> None:
        """Make the parameters (``policy`` is loaded: hidden width, tokenizer, weights to copy).  Called once."""

    @abstractmethod
    def annotate(self, batch: RolloutBatch, policy: HFPolicy) -> None:
        """After sampling, without gradient: fill ``values``, or leave soft rewards in ``features``.

        A step that is broken off calls it again when the run goes on: what it does to weights must count once.
        """

    @abstractmethod
    def loss(self, ctx: LossContext, policy: HFPolicy) -> Tensor:
        """This micro-batch's share of its loss.  ``ctx.counts`` are those of the whole minibatch."""

    def after_step(self) -> None:
        """After an optimizer step in which it was active: moving averages of its weights."""


class Critic(AuxiliaryModel):
    """Predicts the return of a prefix; fills ``batch.values``."""

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        if not recipe.needs("values"):
            yield Problem(
                "model.critic",
                f"{type(self).__name__} would be trained, but no part of the recipe reads its values",
                "Set critic to null, or use an advantage with a critic (GAE, LightCriticBaseline)",
            )
