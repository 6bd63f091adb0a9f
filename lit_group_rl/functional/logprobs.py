"""Log-probability and entropy of chosen tokens from hidden states, without holding [rows, tokens, vocabulary]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLAIN_ELEMENTS = 1 << 22
"""Up to this many logits (16 MB in float32) the plain form is held at once: it is faster than recomputing."""
TILE_ELEMENTS = 1 << 19
"""Logits of a tile otherwise: about what a CPU's cache takes."""
ACCELERATOR_FACTOR = 64
"""An accelerator wants larger tiles than fit a CPU's cache."""
ROWS = 1024
"""Tokens of a tile at most; its other side is a part of the vocabulary."""


def logprobs_from_logits(logits: Tensor, ids: Tensor, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits)[ids] and, if asked, the entropy -sum p log p in nats.

    ``logits`` [..., V] already divided by the temperature, ``ids`` [...] -> ([...], [...] or None), float32 or better.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    normal = logits.log_softmax(-1)
    chosen = normal.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    if not entropy:
        return chosen, None
    # 0 * -inf would be NaN for a token that a filter has removed
    terms = torch.where(normal.isneginf(), torch.zeros_like(normal), normal.exp() * normal)
    return chosen, -terms.sum(-1)


class _TiledHead(torch.autograd.Function):
    """logits = (hidden @ weight.T + bias) / temperature, a tile of the vocabulary at a time, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        temperature: float,
        entropy: bool,
        elements: int,
    ) -> tuple[Tensor, Tensor]:
        n = len(ids)
        highest = hidden.new_full((n,), float("-inf"), dtype=torch.float32)
        total = hidden.new_zeros(n, dtype=torch.float32)  # sum of exp(logit - highest)
        moment = hidden.new_zeros(n, dtype=torch.float32)  # sum of exp(logit - highest) * (logit - highest)
        for tokens, words in _tiles(n, len(weight), elements):
            tile = _logits(hidden[tokens], weight[words], None if bias is None else bias[words], temperature)
            old, new = highest[tokens], torch.maximum(highest[tokens], tile.amax(1))
            shrink = (old - new).exp()
            if entropy:
                # the old terms move with the maximum; the first tile has none, and its -inf * 0 would be NaN
                moved = torch.where(old.isneginf(), 0.0, moment[tokens] + total[tokens] * (old - new))
                tile -= new[:, None]
                p = tile.exp()
                moment[tokens] = shrink * moved + torch.linalg.vecdot(p, tile)
            else:
                p = tile.sub_(new[:, None]).exp_()
            total[tokens] = shrink * total[tokens] + p.sum(1)
            highest[tokens] = new
        log_total = highest + total.log()
        ent = total.log() - moment / total if entropy else torch.zeros_like(total)
        own = None if bias is None else bias[ids]
        chosen = torch.linalg.vecdot(hidden, weight[ids].to(hidden.dtype)).float()
        if own is not None:
            chosen = chosen + own.float()
        ctx.save_for_backward(hidden, weight, bias, ids, log_total, ent)
        ctx.settings = temperature, entropy, elements
        if not entropy:
            ctx.mark_non_differentiable(ent)
        return chosen / temperature - log_total, ent

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, ids, log_total, ent = ctx.saved_tensors
        temperature, entropy, elements = ctx.settings
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        scale = grad_logp / temperature
        # float32 sums over the tiles, whatever the type of the states
        grad_hidden = torch.zeros_like(hidden, dtype=torch.float32) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if need_bias else None
        for tokens, words in _tiles(len(ids), len(weight), elements):
            part = weight[words].to(hidden.dtype)
            tile = _logits(hidden[tokens], part, None if bias is None else bias[words], temperature)
            tile -= log_total[tokens, None]
            # d logp / d logits = onehot - p;   d entropy / d logits = -p (log p + entropy)
            if entropy:
                factor = (tile + ent[tokens, None]).mul_(grad_entropy[tokens, None] / temperature)
                grad = tile.exp_().mul_(factor.add_(scale[tokens, None])).neg_()
            else:
                grad = tile.exp_().mul_(-scale[tokens, None])
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[tokens] += grad @ part
            if grad_weight is not None:
                grad_weight[words] += grad.T @ hidden[tokens]
            if grad_bias is not None:
                grad_bias[words] += grad.sum(0)
        # the chosen tokens' part
        if grad_hidden is not None:
            grad_hidden += scale[:, None] * weight[ids]
        if grad_weight is not None:
            grad_weight.index_add_(0, ids, (scale[:, None] * hidden).float())
        if grad_bias is not None:
            grad_bias.index_add_(0, ids, scale.float())
        return (
            None if grad_hidden is None else grad_hidden.to(hidden.dtype),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _tiles(tokens: int, words: int, elements: int) -> list[tuple[slice, slice]]:
    """Parts of the vocabulary, within each parts of the tokens: each part of the head is read once."""
    height = min(tokens, ROWS)
    width = max(1, elements // max(1, height))
    return [
        (slice(r, min(r + height, tokens)), slice(c, min(c + width, words)))
        for c in range(0, words, width)
        for r in range(0, tokens, height)
    ]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(
        hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
    )
    logits = logits.float()
    return logits if temperature == 1 else logits / temperature


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    elements: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of ``ids`` and entropy in nats under softmax((hidden @ weight.T + bias) / temperature).

    ``hidden`` [N, d], ``weight`` [V, d], ``bias`` [V] or None, ``ids`` [N] -> ([N], [N] or None) float32.
    Beyond ``PLAIN_ELEMENTS`` logits they are computed in tiles, and again in the backward; ``elements`` sets both
    sizes.  Gradients flow to hidden, weight and bias.  Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to score tokens, got {temperature}")
    factor = 1 if hidden.device.type == "cpu" else ACCELERATOR_FACTOR
    if hidden.shape[0] * weight.shape[0] <= (PLAIN_ELEMENTS * factor if elements is None else elements):
        return logprobs_from_logits(_logits(hidden, weight, bias, temperature), ids, entropy=entropy)
    tile = TILE_ELEMENTS * factor if elements is None else elements
    arguments = hidden, weight, bias, ids, temperature, entropy, tile
    logp, ent = _TiledHead.apply(*arguments)  # type: ignore[no-untyped-call]
    return logp, ent if entropy else None
