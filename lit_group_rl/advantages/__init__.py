"""Scores to advantages."""

from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.advantages.group_relative import GroupRelative
from lit_group_rl.advantages.score import Score

__all__ = ["AdvantageEstimator", "GroupRelative", "Score"]
