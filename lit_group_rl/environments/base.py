"""What answers the policy in the middle of a completion."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lit_group_rl.schedules.base import require
from lit_group_rl.types import Component, Prompt


@dataclass(frozen=True)
class Turn:
    """The end of a turn, as an environment sees it."""

    prompt: Prompt
    text: str
    """All that stands behind the prompt so far: every turn of the policy and every reply."""
    said: str
    """What the policy wrote in this turn, without the end token."""
    number: int
    """0 for the first turn."""
    ended: bool
    """The policy wrote an end token; False: one of ``stops``."""
    seed: int
    """Of this turn; an environment takes its chance from nothing else, so that a resumed run meets the same one."""


@dataclass(frozen=True)
class Environment(Component):
    """Reads what the policy wrote when a turn ends, and may write on.

    Its words are context and nothing else: they have no log-prob, no loss, and no part in any length or limit of the
    policy.  It has no memory of its own; what it needs to know stands in the text.
    """

    max_turns: int = 4
    """Turns of the policy; the last one is not answered, and counts as cut off unless it has an end token."""
    max_reply_tokens: int = 32
    """Longest reply; a longer one is cut."""

    stops: ClassVar[tuple[str, ...]] = ()
    """Texts that end a turn, beside the end token; they stay in the text."""

    def __post_init__(self) -> None:
        require(self.max_turns >= 1, self, "max_turns", "must be at least 1")
        require(self.max_reply_tokens >= 1, self, "max_reply_tokens", "must be at least 1")

    @abstractmethod
    def reply(self, turns: Sequence[Turn]) -> Sequence[str | None]:
        """For each turn what the policy reads next: "" lets it write on, None is the end of the episode."""
