"""Programs that draw completions in place of the policy's own decoding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_group_rl.drawn import Drawn
from lit_group_rl.types import Component

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


@dataclass(frozen=True)
class Request:
    """What is to be drawn: ``copies`` completions of every prompt."""

    prompts: Sequence[Sequence[int]]
    """Token ids."""
    copies: int
    keys: Sequence[int]
    """One integer per completion; an engine seeds itself with them as far as it can."""
    max_new_tokens: int
    temperature: float
    """0 = greedy."""
    top_p: float = 1.0
    top_k: int = 0
    stops: tuple[str, ...] = ()
    """Texts that end a completion, and stay in it."""


@dataclass(frozen=True)
class Completion:
    """One drawn completion."""

    ids: list[int]
    """The end token included."""
    logp: list[float]
    """Of each token under the distribution it was drawn from: temperature, top_p and top_k applied."""
    truncated: bool
    """The limit came before an end token or stop text."""


class RolloutEngine(Component):
    """Draws completions in place of the policy's own decoding.

    Its probabilities are never quite the trainer's: kernels, number types and batches differ.  So the trainer computes
    the log-probs of every rollout anew as ``old_logp``, the gap is logged under ``mismatch/``, and ``RolloutIS`` among
    the loss weights corrects it.
    """

    needs = frozenset({"old_logp"})

    @contextmanager
    def serving(self, policy: HFPolicy) -> Iterator[Callable[..., Drawn]]:
        """``generate`` with the policy's present weights, for as long as the context is open."""
        self.start(policy)
        try:
            self.update_weights(policy)
            yield partial(self._generate, policy)
        finally:
            self.pause()

    @abstractmethod
    def start(self, policy: HFPolicy) -> None:
        """Come up, or wake up; called before every rollout."""

    @abstractmethod
    def update_weights(self, policy: HFPolicy) -> None:
        """Take the policy's present weights.  What was computed under the old ones must not be used again."""

    @abstractmethod
    def generate(self, policy: HFPolicy, request: Request) -> list[Completion]:
        """Completions, members of a group next to each other."""

    def pause(self) -> None:
        """Give back the memory that training needs."""

    def _generate(self, policy: HFPolicy, prompts: Sequence[Sequence[int]], **options: object) -> Drawn:
        options.pop("logit_noise", None)  # refused before the first step where it is not 0
        request = Request(prompts, **options)  # type: ignore[arg-type]  # the same names as policy.generate
        drawn = self.generate(policy, request)
        wanted = len(prompts) * request.copies
        if len(drawn) != wanted:
            raise RuntimeError(f"{type(self).__name__} gave {len(drawn)} completions, {wanted} were asked for")
        return as_drawn(drawn, policy.pad_id, policy.device)


def as_drawn(completions: Sequence[Completion], pad_id: int, device: torch.device) -> Drawn:
    """Right-padded tensors."""
    width = max(1, max(len(c.ids) for c in completions))

    def table(rows: list[list[int]] | list[list[float]], fill: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=dtype, device=device)

    return Drawn(
        ids=table([c.ids for c in completions], pad_id, torch.long),
        mask=table([[1] * len(c.ids) for c in completions], 0, torch.bool),
        logp=table([c.logp for c in completions], 0.0, torch.float32),
        entropy=None,
        truncated=torch.tensor([c.truncated for c in completions], device=device),
        exact=False,
    )
