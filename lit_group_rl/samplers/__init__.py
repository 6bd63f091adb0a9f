"""Draw the completions of an RL step."""

from lit_group_rl.samplers.base import Sampler
from lit_group_rl.samplers.dynamic_group import DynamicGroupSampler
from lit_group_rl.samplers.greedy_row import GreedyRowSampler
from lit_group_rl.samplers.group import GroupSampler
from lit_group_rl.samplers.reference_answer import ReferenceAnswer

__all__ = ["DynamicGroupSampler", "GreedyRowSampler", "GroupSampler", "ReferenceAnswer", "Sampler"]
