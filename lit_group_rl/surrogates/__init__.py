"""Ratio, bounds and advantage to a loss per token."""

from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.surrogates.clipped import Clipped
from lit_group_rl.surrogates.reinforce import Reinforce

__all__ = ["Clipped", "Reinforce", "Surrogate"]
