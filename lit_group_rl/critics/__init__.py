"""Models that predict the return of a prefix."""

from lit_group_rl.critics.base import AuxiliaryModel, Critic

__all__ = ["AuxiliaryModel", "Critic"]
