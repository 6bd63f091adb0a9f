"""The continuous batching of transformers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lit_group_rl.drawn import StopTexts
from lit_group_rl.engines.base import Completion, Request, RolloutEngine
from lit_group_rl.schedules.base import require

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy


@dataclass(frozen=True)
class ContinuousBatching(RolloutEngine):
    """``generate_batch`` of transformers on the policy itself: paged cache, no copy of the weights.

    Nothing to install.  It seeds a whole call, not a completion, so what is drawn depends on the batch around it, and a
    resumed run or another number of processes draws other completions.  Stop texts are cut off afterwards: a completion
    is drawn to its end token first.  Written against transformers 5.24.
    """

    page_size: int = 256
    """Tokens of a cache page."""
    num_blocks: int | None = None
    """Pages; null: as many as free memory allows, on a CPU enough for 64 rows."""
    max_batch_tokens: int | None = None
    """Tokens of one forward; null: as many as free memory allows, on a CPU 512."""

    def __post_init__(self) -> None:
        require(self.page_size >= 4, self, "page_size", "must be at least 4")
        for name in ("num_blocks", "max_batch_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, self, name, "must be at least 1, or null")

    def start(self, policy: HFPolicy) -> None:
        """Nothing runs between rollouts."""

    def update_weights(self, policy: HFPolicy) -> None:
        """They are the policy's own."""

    def generate(self, policy: HFPolicy, request: Request) -> list[Completion]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        greedy = request.temperature == 0
        law = GenerationConfig(
            max_new_tokens=request.max_new_tokens,
            do_sample=not greedy,
            temperature=1.0 if greedy else request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            num_return_sequences=request.copies,
            eos_token_id=policy.eos_ids,
            pad_token_id=policy.pad_id,
        )
        blocks, tokens = self.num_blocks, self.max_batch_tokens
        if policy.device.type == "cpu":  # what transformers takes by itself there is slow to fill
            longest = max(len(p) for p in request.prompts) + request.max_new_tokens
            blocks = blocks or 64 * -(-longest // self.page_size)
            tokens = tokens or 512
        config = ContinuousBatchingConfig(
            page_size=self.page_size,
            num_blocks=blocks,
            max_batch_tokens=tokens,
            return_logprobs=True,
            seed=request.keys[0] % 2**31,
            auto_switch_to_flash=False,
        )
        results = _on_plain_attention(policy.model, [list(p) for p in request.prompts], law, config)
        stops = StopTexts.of(policy.tokenizer, request.stops, policy.device) if request.stops else None
        return [_completion(r, set(policy.eos_ids), stops) for r in results]


def _on_plain_attention(model: Any, prompts: list[list[int]], law: Any, config: Any) -> Sequence[Any]:
    """``generate_batch`` knows the attention functions of transformers only; ours comes back afterwards."""
    before, training = model.config._attn_implementation, model.training
    log = logging.getLogger("transformers.generation.continuous_batching")
    level = log.level
    model.set_attn_implementation("sdpa")
    log.setLevel(logging.ERROR)
    try:
        results = model.generate_batch(prompts, generation_config=law, continuous_batching_config=config)
    finally:
        log.setLevel(level)
        model.set_attn_implementation(before)
        model.train(training)
    return list(results.values())


def _completion(result: Any, ends: set[int], stops: StopTexts | None) -> Completion:
    if result.error is not None:
        raise RuntimeError(f"model.sampler.engine: continuous batching failed: {result.error}")
    ids, logp = list(result.generated_tokens), list(result.logprobs)
    stopped = False
    if stops is not None:
        candidates = set(stops.candidates.tolist())
        for n, token in enumerate(ids, 1):
            if token in candidates and stops.end(ids[:n]):
                ids, logp, stopped = ids[:n], logp[:n], True
                break
    return Completion(ids, logp, not stopped and not (ids and ids[-1] in ends))
