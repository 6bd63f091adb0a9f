"""One greedy completion beside the drawn ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lit_group_rl.samplers.batch import build_batch
from lit_group_rl.samplers.group import GroupSampler
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import BASELINE, POLICY, Prompt, RolloutBatch

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


@dataclass(frozen=True)
class GreedyRowSampler(GroupSampler):
    """Adds the likeliest completion, token by token, of each prompt as a row that is scored but not trained on.

    Its score is the baseline of ``GreedyBaseline``.  ``group_size`` counts the drawn completions.

    Source: ReMax, arXiv:2310.10505.
    """

    roles = frozenset({POLICY, BASELINE})

    def sample(
        self, policy: HFPolicy, prompts: Sequence[Prompt], positions: Sequence[int], clock: Clock, seed: int
    ) -> RolloutBatch:
        drawn = super().sample(policy, prompts, positions, clock, seed)
        likeliest = self.draw(policy, prompts, copies=1, keys=[0] * len(prompts), temperature=0.0)
        members = self.size(clock)
        greedy = build_batch(
            policy,
            prompts=prompts,
            prompt_ids=[policy.encode(prompt) for prompt in prompts],
            completion_ids=likeliest.ids,
            completion_mask=likeliest.mask,
            truncated=likeliest.truncated,
            behaviour_logp=likeliest.logp,
            group_ids=torch.tensor(list(positions)),
            members=torch.full((len(prompts),), members),
            temperature=drawn.temperature,
            exact_logp=drawn.exact_logp,  # rows without a trained token: their log-probs are never read
            max_new_tokens=self.max_new_tokens,
            entropy=likeliest.entropy,
            role=BASELINE,
            written=likeliest.written,
            turns=likeliest.turns,
        )
        greedy.mask = torch.zeros_like(greedy.mask)
        both = RolloutBatch.cat([drawn, greedy])
        # the greedy row stands behind the drawn ones of its prompt
        order = [p * members + i for p in range(len(prompts)) for i in range(members)]
        rows = [[*order[p * members : (p + 1) * members], len(drawn) + p] for p in range(len(prompts))]
        return both.rows(torch.tensor([i for row in rows for i in row], device=both.mask.device))
