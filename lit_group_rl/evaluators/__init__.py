"""The second agent of the dual-agent recipe: learns to judge completions."""

from lit_group_rl.evaluators.base import Evaluator
from lit_group_rl.evaluators.dual_agent import DualAgent

__all__ = ["DualAgent", "Evaluator"]
