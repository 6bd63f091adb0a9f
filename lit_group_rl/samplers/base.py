"""Draw the completions of an RL step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from lit_group_rl.drawn import Drawn
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import POLICY, Component, Prompt, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


class Sampler(Component):
    """Prompts to completions."""

    group_size: int
    """Completions per prompt."""
    max_new_tokens: int
    """Most tokens that the policy writes in a completion, the end token included."""

    roles: ClassVar[frozenset[int]] = frozenset({POLICY})
    """Roles of the rows it makes; a component that reads rows of another one is told so."""

    @abstractmethod
    def sample(
        self, policy: HFPolicy, prompts: Sequence[Prompt], positions: Sequence[int], clock: Clock, seed: int
    ) -> RolloutBatch:
        """Completions of all ``prompts``, members of a group next to each other.

        ``policy`` offers ``encode``, ``decode``, ``generate`` (see :class:`lit_group_rl.policy.HFPolicy`).
        ``positions`` number the prompts of the step over all processes: group ids, row ids and every random draw
        derive from (seed, step, position, member), so that the result does not depend on layout.
        """

    def draw(
        self,
        policy: HFPolicy,
        prompts: Sequence[Prompt],
        *,
        copies: int,
        keys: Sequence[int],
        temperature: float,
        **law: Any,
    ) -> Drawn:
        """``copies`` completions of every prompt, for training and for held-out evaluation alike.

        ``keys`` holds one integer per completion; temperature 0 is greedy.
        """
        return policy.generate(
            [policy.encode(p) for p in prompts],
            copies=copies,
            keys=keys,
            max_new_tokens=self.max_new_tokens,
            temperature=temperature,
            **law,
        )

    @property
    def longest(self) -> int:
        """Tokens that a completion can have, what an environment writes included."""
        return self.max_new_tokens

    def size(self, clock: Clock) -> int:
        """Completions per prompt at this RL step."""
        return self.group_size

    def prompts(self, clock: Clock, prompts_per_step: int) -> int:
        """Prompts of this RL step over all processes, where the data asks for ``prompts_per_step``."""
        return prompts_per_step
