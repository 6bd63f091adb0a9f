"""Held-out evaluation: greedy, and sampled when asked.  It draws no random number that training uses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from lit_group_rl.functional.groups import group_index
from lit_group_rl.functional.pass_at_k import pass_at_k
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.rewards.runner import RewardMonitor, score_rewards
from lit_group_rl.samplers.batch import build_batch
from lit_group_rl.schedules.base import Clock, require
from lit_group_rl.types import Component, RolloutBatch

SET = "eval/heldout"


@dataclass(frozen=True)
class HeldOut(Component):
    """Evaluates held-out prompts before the first RL step, every ``every`` steps, and after the last.

    Greedy accuracy always; with ``samples`` k also the mean over k samples and pass@k, the chance that at least one of
    k tries is right, without replacement (arXiv:2107.03374).  Its temperature is its own.
    """

    every: int = 20
    """RL steps between evaluations."""
    samples: int = 0
    """Sampled completions per prompt beside the greedy one; 0 = greedy only."""
    temperature: float = 1.0
    """Of the sampled completions."""

    def __post_init__(self) -> None:
        require(self.every >= 1, self, "every", "must be at least 1")
        require(self.samples >= 0, self, "samples", "must be at least 0")
        require(self.temperature > 0, self, "temperature", "must be above 0 (the greedy pass is separate)")

    def due(self, clock: Clock) -> bool:
        """Whether to evaluate after ``clock.step`` finished RL steps."""
        return clock.step % self.every == 0 or clock.step == clock.total

    def run(self, policy: Any, sampler: Any, rewards: Any, prompts: Any, seed: int, bag: MetricBag) -> None:
        """Add the set's numbers to the bag.  ``prompts`` are this process's share, numbered over all processes."""
        if not prompts.prompts:
            return
        batch = self.greedy(policy, sampler, prompts)
        scores, solved = self._score(rewards, batch, seed)
        bag.mean(f"{SET}/accuracy", solved.double().sum(), len(batch))
        bag.mean(f"{SET}/reward", scores.nan_to_num().sum(), len(batch))
        bag.mean(f"{SET}/length", batch.own_lengths.double().sum(), len(batch))
        bag.mean(f"{SET}/truncated_frac", batch.truncated.double().sum(), len(batch))
        if self.samples:
            self._sampled(policy, sampler, rewards, prompts, seed, bag)

    def greedy(self, policy: Any, sampler: Any, prompts: Any) -> RolloutBatch:
        """The likeliest completion of every prompt, token by token."""
        return self._draw(policy, sampler, prompts, copies=1, temperature=0.0, seed=0)

    def _sampled(self, policy: Any, sampler: Any, rewards: Any, prompts: Any, seed: int, bag: MetricBag) -> None:
        batch = self._draw(policy, sampler, prompts, copies=self.samples, temperature=self.temperature, seed=seed)
        _, solved = self._score(rewards, batch, seed)
        index, groups = group_index(batch.group_ids)
        correct = torch.zeros(groups, device=index.device).index_add_(0, index, solved.float()).tolist()
        bag.mean(f"{SET}/mean_at_{self.samples}", sum(correct) / self.samples, groups)
        k = 1
        while k <= self.samples:
            bag.mean(f"{SET}/pass_at_{k}", sum(pass_at_k(self.samples, int(c), k) for c in correct), groups)
            k *= 2
        bag.mean(f"{SET}/maj_at_{self.samples}", self._majority(batch, solved.tolist(), index, groups), groups)

    @staticmethod
    def _majority(batch: RolloutBatch, solved: list[bool], index: torch.Tensor, groups: int) -> float:
        """Groups whose commonest completion text (the first of equals) is right."""
        right = 0
        for g in range(groups):
            rows = (index == g).nonzero().squeeze(1).tolist()
            commonest = Counter(batch.samples[i].completion.strip() for i in rows).most_common(1)[0][0]
            right += next(solved[i] for i in rows if batch.samples[i].completion.strip() == commonest)
        return float(right)

    @staticmethod
    def _draw(policy: Any, sampler: Any, prompts: Any, *, copies: int, temperature: float, seed: int) -> RolloutBatch:
        keys = [seed_of(seed, "heldout", at, k) for at in prompts.positions for k in range(copies)]
        drawn = sampler.draw(policy, prompts.prompts, copies=copies, keys=keys, temperature=temperature)
        return build_batch(
            policy,
            prompts=[p for p in prompts.prompts for _ in range(copies)],
            prompt_ids=[policy.encode(p) for p in prompts.prompts for _ in range(copies)],
            completion_ids=drawn.ids,
            completion_mask=drawn.mask,
            truncated=drawn.truncated,
            behaviour_logp=drawn.logp,
            group_ids=torch.tensor([at for at in prompts.positions for _ in range(copies)]),
            members=torch.arange(copies).repeat(len(prompts.prompts)),
            temperature=temperature or 1.0,
            exact_logp=False,
            written=drawn.written,
            turns=drawn.turns,
        )

    @staticmethod
    def _score(rewards: Any, batch: RolloutBatch, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        score_rewards(rewards, batch, Clock(0, 1), seed_of(seed, "heldout"), RewardMonitor())
        assert batch.scores is not None
        assert batch.solved is not None
        return batch.scores, batch.solved
