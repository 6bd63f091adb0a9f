"""G completions of each prompt from the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lit_group_rl.drawn import Drawn
from lit_group_rl.engines.base import RolloutEngine
from lit_group_rl.environments.base import Environment
from lit_group_rl.environments.episode import play
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.samplers.base import Sampler
from lit_group_rl.samplers.batch import build_batch
from lit_group_rl.schedules.base import Clock, Number, Schedule, require, require_number
from lit_group_rl.types import Problem, Prompt, Recipe, RolloutBatch, Sample

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


@dataclass(frozen=True)
class GroupSampler(Sampler):
    """Draws ``group_size`` independent completions of every prompt.

    All log-probs of the run are taken at ``temperature``.  With ``top_p`` or ``top_k`` the sampler's own log-probs are
    those of the truncated distribution, the trainer's those of the full one: pair it with a rollout weight.  The same
    goes for ``logit_noise``, which explores: each completion is drawn from logits with a Gaussian shift of its own.
    """

    group_size: int = 8
    """G: completions per prompt."""
    max_new_tokens: int = 256
    """Most tokens that the policy writes in a completion, the end token included."""
    temperature: Number = 1.0
    """Softmax temperature, above 0."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with at least this much probability; 1 = all."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0 = all."""
    logit_noise: Number = 0.0
    """Deviation of Gaussian noise on the logits, one draw per turn of a completion and token of the vocabulary."""
    environment: Environment | None = None
    """Answers the policy in the middle of a completion, e.g. ``Calculator``; null: nobody does."""
    engine: RolloutEngine | None = None
    """Draws in place of the policy's own decoding, e.g. ``VLLM``; null: the policy's own."""

    def __post_init__(self) -> None:
        require(self.group_size >= 1, self, "group_size", "must be at least 1")
        require(self.max_new_tokens >= 1, self, "max_new_tokens", "must be at least 1")
        require_number(self, "temperature", low=1e-3)
        require(0 < self.top_p <= 1, self, "top_p", "must lie in (0, 1]")
        require(self.top_k >= 0, self, "top_k", "must be at least 0")
        require_number(self, "logit_noise", low=0.0)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        noisy = isinstance(self.logit_noise, Schedule) or self.logit_noise > 0
        corrected = any(type(part).__name__ == "RolloutIS" for _, part in recipe.components())
        if noisy and self.engine is not None:
            yield Problem(
                "model.sampler.logit_noise",
                f"{type(self.engine).__name__} cannot shift the logits of each completion",
                "Set it to 0, or engine to null",
            )
        if self.engine is not None and not corrected:
            yield Problem(
                "model.sampler.engine",
                "its probabilities are not quite those that are trained (see mismatch/ in the metrics), and nothing "
                "corrects it",
                "Add RolloutIS to model.loss_weights, as the overlays under configs/engine do",
                warning=True,
            )
        if noisy and not corrected:
            yield Problem(
                "model.sampler.logit_noise",
                "the completions come from another distribution than the one that is trained, and nothing corrects it",
                "Add RolloutIS to model.loss_weights",
                warning=True,
            )

    def sample(
        self, policy: HFPolicy, prompts: Sequence[Prompt], positions: Sequence[int], clock: Clock, seed: int
    ) -> RolloutBatch:
        copies, temperature, noise = self.size(clock), clock.at(self.temperature), clock.at(self.logit_noise)
        keys = [seed_of(seed, "sample", clock.step, at, member) for at in positions for member in range(copies)]
        drawn = self.draw(
            policy,
            prompts,
            copies=copies,
            keys=keys,
            temperature=temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            logit_noise=noise,
        )
        truncating = self.top_p < 1 or self.top_k > 0
        return build_batch(
            policy,
            prompts=[p for p in prompts for _ in range(copies)],
            prompt_ids=[policy.encode(p) for p in prompts for _ in range(copies)],
            completion_ids=drawn.ids,
            completion_mask=drawn.mask,
            truncated=drawn.truncated,
            behaviour_logp=drawn.logp,
            group_ids=torch.tensor([at for at in positions for _ in range(copies)]),
            members=torch.arange(copies).repeat(len(prompts)),
            temperature=temperature,
            exact_logp=drawn.exact and not truncating,
            max_new_tokens=self.max_new_tokens,
            entropy=drawn.entropy,
            written=drawn.written,
            turns=drawn.turns,
        )

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
        given: dict[str, Any] = {"copies": copies, "keys": keys, "temperature": temperature, **law}
        with nullcontext(policy.generate) if self.engine is None else self.engine.serving(policy) as generate:
            if self.environment is None:
                encoded = [policy.encode(p) for p in prompts]
                if policy.on_completion is not None and self.engine is None:
                    given["on_end"] = _teller(policy, policy.on_completion, prompts, copies)
                return generate(encoded, max_new_tokens=self.max_new_tokens, **given)
            return play(generate, policy, self.environment, prompts, max_new_tokens=self.max_new_tokens, **given)

    @property
    def longest(self) -> int:
        if self.environment is None:
            return self.max_new_tokens
        return self.max_new_tokens + (self.environment.max_turns - 1) * self.environment.max_reply_tokens


def _teller(
    policy: HFPolicy, tell: Callable[[Sample], None], prompts: Sequence[Prompt], copies: int
) -> Callable[[int, list[int], bool], None]:
    """Tells of a drawn row as the sample that the batch will hold."""

    def on_end(row: int, ids: list[int], truncated: bool) -> None:
        prompt = prompts[row // copies]
        (text,) = policy.decode([ids])
        tell(Sample(prompt.text, text, prompt.answer, prompt.fields, len(ids), truncated))

    return on_end
