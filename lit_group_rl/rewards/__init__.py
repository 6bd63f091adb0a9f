"""Score completions, and shape the scores."""

from lit_group_rl.rewards.base import Reward, RewardShaper
from lit_group_rl.rewards.code_execution import CodeExecution
from lit_group_rl.rewards.evaluator_score import EvaluatorScore
from lit_group_rl.rewards.exact_match import ExactMatch
from lit_group_rl.rewards.follows import Follows
from lit_group_rl.rewards.function import FunctionReward
from lit_group_rl.rewards.group_embedding import GroupEmbedding
from lit_group_rl.rewards.group_score import GroupScore
from lit_group_rl.rewards.group_text import GroupFirstLast, GroupNGram, GroupRougeL
from lit_group_rl.rewards.kl_penalty import KLPenalty
from lit_group_rl.rewards.length import Length
from lit_group_rl.rewards.math_verify import MathVerify
from lit_group_rl.rewards.numeric import NumericMatch
from lit_group_rl.rewards.pattern import Format, ThinkAnswerFormat
from lit_group_rl.rewards.reasoning_gym import ReasoningGymReward
from lit_group_rl.rewards.reward_model import RewardModel
from lit_group_rl.rewards.runner import RewardBroken, RewardMonitor, score_rewards
from lit_group_rl.rewards.soft_overlong import SoftOverlong

__all__ = [
    "CodeExecution",
    "EvaluatorScore",
    "ExactMatch",
    "Follows",
    "Format",
    "FunctionReward",
    "GroupEmbedding",
    "GroupFirstLast",
    "GroupNGram",
    "GroupRougeL",
    "GroupScore",
    "KLPenalty",
    "Length",
    "MathVerify",
    "NumericMatch",
    "ReasoningGymReward",
    "Reward",
    "RewardBroken",
    "RewardModel",
    "RewardMonitor",
    "RewardShaper",
    "SoftOverlong",
    "ThinkAnswerFormat",
    "score_rewards",
]
