"""Score completions, and shape the scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor

from lit_group_rl.schedules.base import Clock, Number
from lit_group_rl.types import Component, RolloutBatch, Sample

Outcome = Literal["minimum", "abstain", "stop"]
"""What becomes of a completion that could not be scored: the lowest score, no score, or the end of the run."""


class ScorerTimeout(Exception):
    """The call ran past its limit."""


class ScorerError(Exception):
    """The scorer raised in another process; carries the message and the traceback of its exception."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.kind = message.partition(":")[0]
        if trace:
            self.add_note(trace)


class Reward(Component):
    """Gives each completion a number.  The total is sum(weight * score) over the rewards that could score it."""

    weight: Number = 1.0
    """Weight in the total; 0 keeps the reward as a column that is logged and that other components may read."""
    solved_at: float = 1.0
    """From this score on a completion counts as solved; the first reward of a recipe decides."""
    range: tuple[float, float] | None = None
    """Declared smallest and largest score: what lies outside is clamped, with a warning."""
    on_error: str = "abstain"
    """An Outcome: of completions on which it raises."""
    on_timeout: str = "minimum"
    """An Outcome: of completions on which it ran past a limit, so that a policy does not learn to hide there."""
    early: ClassVar[bool] = False
    """A score depends on its completion alone, draws no random number in this process, and is computed in another one:
    ``score`` is called with single completions, from a thread, while others are still being drawn."""
    at_once: ClassVar[int] = 1
    """Single completions of an ``early`` reward that are scored side by side."""

    @abstractmethod
    def score(self, samples: Sequence[Sample]) -> Sequence[float | Exception | None]:
        """One number per sample, in order; None or NaN abstains and has no part in any mean.

        An exception in place of a number is a failure on that sample: counted, reported, and settled by ``on_error``,
        or for a ScorerTimeout by ``on_timeout``.
        """

    def score_batch(self, batch: RolloutBatch) -> Sequence[float | Exception | None]:
        """As ``score``, for rewards that compare the members of a group or read tokens."""
        return self.score(batch.samples)


class RewardShaper(Component):
    """Changes the score after groups were filtered on the raw one: length penalties, KL in the reward."""

    @abstractmethod
    def shape(self, batch: RolloutBatch, clock: Clock) -> Tensor:
        """Added to the scores if [B], to the token rewards if [B, T]."""
