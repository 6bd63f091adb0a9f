"""Models that predict the return of a prefix."""

from lit_group_rl.critics.base import AuxiliaryModel, Critic
from lit_group_rl.critics.light import LightCritic
from lit_group_rl.critics.value_model import ValueModel

__all__ = ["AuxiliaryModel", "Critic", "LightCritic", "ValueModel"]
