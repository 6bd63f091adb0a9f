"""A bonus for keeping options open."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.schedules.base import Number, require_number
from lit_group_rl.types import LossContext


@dataclass(frozen=True)
class Entropy(AuxLoss):
    """-coef * entropy of the next-token distribution, per trained token, in nats.

    A small coefficient can itself explode (watch ``policy/entropy``); off in every recipe unless its paper has it.

    Source: A3C, arXiv:1602.01783; PPO, arXiv:1707.06347, eq. 9.
    """

    coef: Number = 0.001
    """c_H: weight of the bonus."""

    needs = frozenset({"entropy"})

    def __post_init__(self) -> None:
        require_number(self, "coef")

    def term(self, ctx: LossContext) -> Tensor:
        assert ctx.entropy is not None
        return -ctx.entropy
