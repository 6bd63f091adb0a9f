"""Where prompts come from."""

from lit_group_rl.data.base import PromptSource
from lit_group_rl.data.hf import HFDataset
from lit_group_rl.data.mixture import Mixture
from lit_group_rl.data.module import PromptData, PromptStream, StepPrompts
from lit_group_rl.data.reasoning_gym import ReasoningGym
from lit_group_rl.data.table import Table
from lit_group_rl.data.tasks import ALPHABET, Addition, Copy, Maximum, Parentheses, Reverse, Sort, Task

__all__ = [
    "ALPHABET",
    "Addition",
    "Copy",
    "HFDataset",
    "Maximum",
    "Mixture",
    "Parentheses",
    "PromptData",
    "PromptSource",
    "PromptStream",
    "ReasoningGym",
    "Reverse",
    "Sort",
    "StepPrompts",
    "Table",
    "Task",
]
