"""Scores to advantages."""

from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.advantages.between_group import BetweenGroup
from lit_group_rl.advantages.gae import GAE
from lit_group_rl.advantages.gdpo import GDPO
from lit_group_rl.advantages.gpg import GPG
from lit_group_rl.advantages.greedy_baseline import GreedyBaseline
from lit_group_rl.advantages.group_relative import GroupRelative
from lit_group_rl.advantages.leave_one_out import LeaveOneOut
from lit_group_rl.advantages.length_weighted import LengthWeighted
from lit_group_rl.advantages.light_critic import LightCriticBaseline
from lit_group_rl.advantages.mean_scaled import MeanScaled
from lit_group_rl.advantages.noisy import NoisyAdvantage
from lit_group_rl.advantages.pass_at_k import PassAtK
from lit_group_rl.advantages.pass_at_k_top2 import PassAtKTopTwo
from lit_group_rl.advantages.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from lit_group_rl.advantages.score import Score
from lit_group_rl.advantages.winsorised import WinsorisedAdvantage

__all__ = [
    "GAE",
    "GDPO",
    "GPG",
    "AdvantageEstimator",
    "BetweenGroup",
    "GreedyBaseline",
    "GroupRelative",
    "LeaveOneOut",
    "LengthWeighted",
    "LightCriticBaseline",
    "MeanScaled",
    "NoisyAdvantage",
    "PassAtK",
    "PassAtKTopTwo",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "Score",
    "WinsorisedAdvantage",
]
