"""Draw completions token by token with a key-value cache.

Every prompt is run through the model once and its cache is shared out to the members of its group.  A row's randomness
comes from its key alone, so a completion does not depend on what else is in the batch.  Finished rows are taken out of
the batch once they are the majority.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_group_rl.functional.logprobs import logprobs_from_logits
from lit_group_rl.functional.rng import normals, seed_of, uniforms

BLOCK = 64
"""Random numbers are made for this many tokens at a time."""


@dataclass(frozen=True)
class Drawn:
    """Completions of B rows, right-padded."""

    ids: Tensor
    """[B, T] the end token included."""
    mask: Tensor
    """[B, T] True = drawn token."""
    logp: Tensor
    """[B, T] under the distribution the token was drawn from; 0 off the mask."""
    entropy: Tensor
    """[B, T] of that distribution, nats; 0 off the mask."""
    truncated: Tensor
    """[B] True = the limit came before an end token."""
    exact: bool
    """The log-probs are those a scoring forward would give (float32 weights, no autocast, no truncation)."""


def truncate(logits: Tensor, *, top_p: float, top_k: int) -> Tensor:
    """Set to -inf what top-k and then nucleus sampling leave out.  [B, V] -> [B, V].

    top_p keeps the smallest set whose probability reaches top_p, the token that crosses it included
    (arXiv:1904.09751); the likeliest token always stays.
    """
    if top_k > 0 and top_k < logits.shape[-1]:
        edge = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < edge, float("-inf"))
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
        logits = logits.masked_fill(drop, float("-inf"))
    return logits


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF draw: the first token whose cumulative probability exceeds the uniform.  [B, V], [B] -> [B]."""
    cdf = logits.softmax(-1).double().cumsum(-1)
    total = cdf[:, -1:]
    # the product may round up to the total, which no token's cumulative probability exceeds
    level = torch.minimum(uniform.to(cdf)[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, level, right=True).squeeze(-1)


def _cache_argument(model: torch.nn.Module) -> str:
    """transformers renamed ``past_key_values`` to ``cache``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.no_grad()
def generate(
    model: torch.nn.Module,
    prompts: Sequence[Sequence[int]],
    *,
    copies: int,
    keys: Sequence[int],
    max_new_tokens: int,
    temperature: float,
    eos_ids: Sequence[int],
    pad_id: int,
    top_p: float = 1.0,
    top_k: int = 0,
    logit_noise: float = 0.0,
    max_rows: int = 512,
) -> Drawn:
    """``copies`` completions of every prompt, members of a group next to each other; temperature 0 is greedy.

    ``model`` is any causal language model of transformers; ``keys`` holds one integer per completion;
    at most ``max_rows`` rows are decoded at a time.  Greedy log-probs are taken at temperature 1.  ``logit_noise``
    adds that many deviations of Gaussian noise to the logits, one draw per row and token of the vocabulary, the same
    for the whole completion; the log-probs are those of the noisy distribution.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        per = max(1, max_rows // copies)
        parts = [
            _decode(
                model,
                prompts[s : s + per],
                copies,
                keys[s * copies : (s + per) * copies],
                max_new_tokens,
                temperature,
                eos_ids,
                pad_id,
                top_p,
                top_k,
                logit_noise,
                device,
            )
            for s in range(0, len(prompts), per)
        ]
    finally:
        model.train(was_training)
    ids, mask, logp, entropy, ended = (_stack(column) for column in zip(*parts, strict=True))
    weights = next(model.parameters()).dtype
    exact = weights == torch.float32 and not torch.is_autocast_enabled(device.type) and temperature > 0
    return Drawn(ids, mask, logp, entropy, ~ended, exact and top_p >= 1 and top_k == 0 and logit_noise == 0)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(p.shape[1] for p in parts)
    return torch.cat([torch.nn.functional.pad(p, (0, width - p.shape[1])) for p in parts])


def _decode(  # noqa: PLR0913
    model, prompts, copies, keys, max_new_tokens, temperature, eos_ids, pad_id, top_p, top_k, logit_noise, device
):
    rows, width = len(prompts) * copies, max(len(p) for p in prompts)
    prompt_ids = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    prompt_mask = torch.zeros((len(prompts), width), dtype=torch.long)
    for i, prompt in enumerate(prompts):
        prompt_ids[i, width - len(prompt) :] = torch.tensor(prompt)
        prompt_mask[i, width - len(prompt) :] = 1
    prompt_mask = prompt_mask.to(device)
    cache_name = _cache_argument(model)
    out = model(
        input_ids=prompt_ids.to(device),
        attention_mask=prompt_mask,
        position_ids=(prompt_mask.cumsum(1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    cache = out[cache_name]
    if copies > 1:
        cache.batch_repeat_interleave(copies)
    logits = out.logits[:, -1].repeat_interleave(copies, 0)
    shift = None
    if logit_noise and temperature > 0:
        shift = logit_noise * normals([seed_of(key, "logits") for key in keys], logits.shape[-1]).float().to(device)
    attention = prompt_mask.repeat_interleave(copies, 0)
    position = attention.sum(1)
    stop = torch.tensor(sorted(eos_ids), device=device)
    ids = torch.full((rows, max_new_tokens), pad_id, dtype=torch.long, device=device)
    logp = torch.zeros((rows, max_new_tokens), device=device)
    entropy = torch.zeros((rows, max_new_tokens), device=device)
    length = torch.zeros(rows, dtype=torch.long, device=device)
    ended = torch.zeros(rows, dtype=torch.bool, device=device)
    alive = torch.arange(rows, device=device)  # row numbers of what is in the model's batch
    active = torch.ones(rows, dtype=torch.bool, device=device)
    noise = torch.empty(0)
    for t in range(max_new_tokens):
        if shift is not None:
            logits = logits.float() + shift[alive]
        if t % BLOCK == 0 and temperature > 0:
            noise = uniforms(keys, t, min(BLOCK, max_new_tokens - t)).to(device)
        token, token_logp, token_entropy = _choose(logits, noise[alive, t % BLOCK] if temperature > 0 else None, temperature, top_p, top_k)
        at = alive[active]
        ids[at, t], length[at] = token[active], t + 1
        logp[at, t], entropy[at, t] = token_logp[active], token_entropy[active]
        stopped = torch.isin(token, stop) & active
        ended[alive[stopped]] = True
        active = active & ~stopped
        left = int(active.sum())
        if left == 0 or t + 1 == max_new_tokens:
            break
        if left <= len(active) // 2:
            keep = active.nonzero().squeeze(1)
            cache.batch_select_indices(keep)
            alive, attention, position, token, active = alive[keep], attention[keep], position[keep], token[keep], active[keep]
        attention = torch.cat([attention, attention.new_ones(len(alive), 1)], 1)
        out = model(
            input_ids=token[:, None],
            attention_mask=attention,
            position_ids=position[:, None],
            use_cache=True,
            **{cache_name: cache},
        )
        cache, logits, position = out[cache_name], out.logits[:, -1], position + 1
    longest = max(1, int(length.max()))
    columns = torch.arange(longest, device=device)
    return ids[:, :longest], columns[None] < length[:, None], logp[:, :longest], entropy[:, :longest], ended


def _choose(
    logits: Tensor, uniform: Tensor | None, temperature: float, top_p: float, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    logits = logits.float()
    if uniform is not None:
        logits = truncate(logits / temperature, top_p=top_p, top_k=top_k)
    token = logits.argmax(-1) if uniform is None else draw(logits, uniform)
    logp, entropy = logprobs_from_logits(logits, token, entropy=True)
    assert entropy is not None
    return token, logp, entropy
