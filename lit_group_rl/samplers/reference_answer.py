"""Completions given by the data instead of drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lit_group_rl.samplers.base import Sampler
from lit_group_rl.samplers.batch import build_batch
from lit_group_rl.schedules.base import Clock, require
from lit_group_rl.types import EXPERT, Prompt, RecipeError, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


@dataclass(frozen=True)
class ReferenceAnswer(Sampler):
    """The right answer of every prompt as its only completion: with ``Score`` and ``Reinforce`` this is supervised
    fine-tuning.  Rows have the role of an expert; their behaviour log-prob is 0 (probability 1)."""

    max_new_tokens: int = 256
    """Longest answer, the end token included; a longer one is refused."""
    group_size: int = 1
    """Always 1."""

    roles = frozenset({EXPERT})

    def __post_init__(self) -> None:
        require(self.group_size == 1, self, "group_size", "must be 1: a prompt has one reference answer")

    def sample(
        self, policy: HFPolicy, prompts: Sequence[Prompt], positions: Sequence[int], clock: Clock, seed: int
    ) -> RolloutBatch:
        rows = []
        for prompt in prompts:
            if prompt.answer is None:
                raise RecipeError(f"model.sampler: {prompt.place or 'a prompt'} has no answer to learn from")
            answer = policy.encode_answer(prompt.answer)
            if len(answer) > self.max_new_tokens:
                raise RecipeError(
                    f"model.sampler.max_new_tokens: the answer of {prompt.place or 'a prompt'} has {len(answer)} "
                    f"tokens, more than {self.max_new_tokens}. Raise max_new_tokens"
                )
            rows.append(answer)
        width = max(len(r) for r in rows)
        ids = torch.full((len(rows), width), policy.pad_id, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.bool)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = True
        ids, mask = ids.to(policy.device), mask.to(policy.device)
        return build_batch(
            policy,
            prompts=prompts,
            prompt_ids=[policy.encode(p) for p in prompts],
            completion_ids=ids,
            completion_mask=mask,
            truncated=torch.zeros(len(rows), dtype=torch.bool, device=ids.device),
            behaviour_logp=torch.zeros(ids.shape, device=ids.device),
            group_ids=torch.tensor(list(positions)),
            members=torch.zeros(len(rows), dtype=torch.long),
            temperature=1.0,
            exact_logp=False,
            max_new_tokens=self.max_new_tokens,
            role=EXPERT,
        )
