"""Where prompts come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from lit_group_rl.types import Component, Prompt


class PromptSource(Component):
    """Training and held-out prompts that never overlap; the content is a function of the source's own options."""

    @abstractmethod
    def load(self, heldout_size: int) -> tuple[Sequence[Prompt], Sequence[Prompt]]:
        """(training prompts, held-out prompts).  Called once per process; raises RecipeError on bad data."""
