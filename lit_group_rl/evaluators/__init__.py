"""The second agent of the dual-agent recipe: learns to judge completions."""

from lit_group_rl.evaluators.base import Evaluator

__all__ = ["Evaluator"]
