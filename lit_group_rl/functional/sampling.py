"""Choose the next token of every row, with its log-probability and the entropy of what it was drawn from."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256
"""Tokens whose probabilities are added up before one of them is looked for."""


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


def _find(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """First place whose cumulative weight exceeds ``share`` of the total, and where in it the share falls.

    [B, n], [B] -> ([B], [B] in [0, 1)).  A place without weight is never found.
    """
    sums = weights.double().cumsum(-1)
    total = sums[:, -1:]
    # the product may round up to the total, which no place's cumulative weight exceeds
    level = torch.minimum(share.to(sums)[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    at = torch.searchsorted(sums, level, right=True)
    upper = sums.gather(1, at)
    lower = torch.where(at > 0, sums.gather(1, (at - 1).clamp(min=0)), 0.0)
    return at.squeeze(1), ((level - lower) / (upper - lower)).clamp(0, 1).squeeze(1)


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Inverse-CDF draw: the first token whose cumulative probability exceeds the uniform.  [B, V], [B] -> [B].

    Over a large vocabulary a block of tokens is found first and then a token in it, so that the whole need not be
    summed token by token.
    """
    size = probabilities.shape[1]
    if size <= 4 * BLOCK:
        return _find(probabilities, uniform)[0]
    whole = size // BLOCK * BLOCK
    sums = probabilities[:, :whole].unflatten(1, (-1, BLOCK)).sum(2)
    if whole < size:
        sums = torch.cat([sums, probabilities[:, whole:].sum(1, keepdim=True)], 1)
    block, share = _find(sums, uniform)
    places = block[:, None] * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(1, places.clamp(max=size - 1)).masked_fill(places >= size, 0.0)
    return block * BLOCK + _find(inside, share)[0]


def choose(
    logits: Tensor, uniform: Tensor | None, *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Token, log-prob and entropy in nats.  [B, V], uniforms [B] or None for the likeliest -> three of [B].

    The numbers are those of softmax(logits / temperature) after truncation; of softmax(logits) without uniforms.
    ``logits`` is overwritten.
    """
    logits = logits.float()
    truncated = uniform is not None and (top_p < 1 or top_k > 0)
    if uniform is not None and temperature != 1:
        logits = logits.div_(temperature)
    if truncated:
        logits = truncate(logits, top_p=top_p, top_k=top_k)
    logits = logits.sub_(logits.amax(-1, keepdim=True))
    p = logits.softmax(-1)
    token = logits.argmax(-1) if uniform is None else draw(p, uniform)
    log_total = -p.amax(-1).log()  # the largest logit is 0
    logp = logits.gather(1, token[:, None]).squeeze(1) - log_total
    if truncated:
        logits = logits.clamp_(min=torch.finfo(logits.dtype).min)  # 0 * -inf would be NaN
    return token, logp, log_total - torch.linalg.vecdot(p, logits)
