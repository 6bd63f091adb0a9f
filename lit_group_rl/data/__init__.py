"""Where prompts come from."""

from lit_group_rl.data.base import PromptSource
from lit_group_rl.data.mixture import Mixture
from lit_group_rl.data.module import PromptData, PromptStream, StepPrompts
from lit_group_rl.data.tasks import ALPHABET, Addition, Copy, Maximum, Parentheses, Reverse, Sort, Task

__all__ = [
    "ALPHABET",
    "Addition",
    "Copy",
    "Maximum",
    "Mixture",
    "Parentheses",
    "PromptData",
    "PromptSource",
    "PromptStream",
    "Reverse",
    "Sort",
    "StepPrompts",
    "Task",
]
