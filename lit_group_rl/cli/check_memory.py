"""What a process of a run holds at its peak, from what one forward of the first look keeps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from lit_group_rl.functional.logprobs import PLAIN_ELEMENTS
from lit_group_rl.llama_step import COPY_BYTES
from lit_group_rl.types import RolloutBatch

PROCESS = 0.45 * 2**30
"""Python, torch and transformers in host memory, before a weight is loaded."""


def tokens_of(batch: RolloutBatch, packs: bool) -> int:
    """Tokens that a forward of the batch computes: each prompt once and no padding, where the model allows it."""
    if not packs:
        return batch.prompt_mask.shape[1] * len(batch) + batch.completion_mask.numel()
    first = {int(g): i for i, g in reversed(list(enumerate(batch.group_ids)))}
    return int(batch.prompt_mask[list(first.values())].sum() + batch.lengths.sum())


def kept_per_token(policy: Any, batch: RolloutBatch) -> float:
    """Bytes that a forward keeps for the backward, per token; weights and what checkpointing saves left out of it."""
    weights = {p.untyped_storage().data_ptr() for p in policy.net.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}  # the tensor too, or its place would be given to another one

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    layers = [m for m in policy.net.modules() if getattr(m, "gradient_checkpointing", False)]
    for layer in layers:
        layer.gradient_checkpointing = False
    try:
        with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
            policy.score(batch)
    finally:
        for layer in layers:
            layer.gradient_checkpointing = True
    return sum(size for size, _ in kept.values()) / tokens_of(batch, policy.packs)


def memory_gb(
    module: Any, per_token: float, prompt_tokens: int, prompts_per_step: int, shards: int, on_cpu: bool
) -> float:
    """The larger of what learning and drawing take, in GiB.

    Learning holds weights, gradients, Adam's two moments and a reference, and of one micro-batch what its forward
    keeps, its logits, and the gradients of a tied head.  Drawing holds the same but the micro-batch, a key-value cache,
    and the whole policy (on a CPU a copy of it).  Over ``shards`` processes the weights are divided.
    """
    policy, sampler = module.policy, module.sampler
    weight = next(policy.net.parameters())
    parameters = sum(p.numel() for p in policy.net.parameters())
    trainable = sum(p.numel() for p in policy.net.parameters() if p.requires_grad)
    others = [p for model in module.models.values() for p in model.parameters()]
    held = parameters + 3 * trainable + sum(p.numel() * (4 if p.requires_grad else 1) for p in others)
    if module.describe(1).needs("ref_logp") and trainable == parameters:
        held += parameters
    config = policy.model.config.get_text_config()
    vocabulary, hidden, layers = config.vocab_size, config.hidden_size, config.num_hidden_layers
    queries = getattr(config, "num_attention_heads", 0)  # none: a model that keeps no keys and values
    heads = getattr(config, "num_key_value_heads", None) or queries
    head_width = getattr(config, "head_dim", None) or hidden // max(1, queries)

    own = sampler.longest
    groups = math.ceil(prompts_per_step / module.minibatches / shards)
    all_tokens = groups * (
        prompt_tokens + sampler.group_size * own if policy.packs else sampler.group_size * (prompt_tokens + own)
    )
    tokens = min(module.micro_batch_tokens, all_tokens)
    if policy.gradient_checkpointing:  # the input of every layer, and one layer at a time
        per_token = per_token / layers + hidden * layers * weight.element_size()
    tied = getattr(config, "tie_word_embeddings", False) and trainable == parameters
    learning = tokens * per_token + 12 * min(PLAIN_ELEMENTS, tokens * vocabulary) + 8 * vocabulary * hidden * tied

    rows = min(policy.decode_rows, math.ceil(prompts_per_step / shards) * sampler.group_size)
    cache = rows * (prompt_tokens + own) * 2 * layers * heads * head_width * weight.element_size()
    whole = parameters * weight.element_size()
    copied = whole if on_cpu and whole <= COPY_BYTES else 0
    drawing = cache + copied + (whole - whole // shards)
    return float(PROCESS * on_cpu + held * weight.element_size() / shards + max(learning, drawing)) / 2**30
