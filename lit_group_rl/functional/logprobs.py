"""Log-probability and entropy of chosen tokens from hidden states, without holding [rows, tokens, vocabulary]."""

from __future__ import annotations

import torch
from torch import Tensor

PLAIN_ELEMENTS = 1 << 22
"""Up to this many logits (16 MB in float32) the plain form is held at once: it is faster than recomputing."""


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


class _ChunkedHead(torch.autograd.Function):
    """logits = (hidden @ weight.T + bias) / temperature, chunk by chunk, forward and backward."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, ids, temperature, entropy, rows):  # noqa: PLR0913
        logp = hidden.new_empty(len(ids), dtype=torch.float32)
        ent = hidden.new_zeros(len(ids), dtype=torch.float32)
        for s in range(0, len(ids), rows):
            e = s + rows
            logits = _logits(hidden[s:e], weight, bias, temperature)
            part, part_entropy = logprobs_from_logits(logits, ids[s:e], entropy=entropy)
            logp[s:e] = part
            if entropy:
                ent[s:e] = part_entropy
        ctx.save_for_backward(hidden, weight, bias, ids, ent)
        ctx.settings = temperature, entropy, rows
        if not entropy:
            ctx.mark_non_differentiable(ent)
        return logp, ent

    @staticmethod
    def backward(ctx, grad_logp, grad_entropy):
        hidden, weight, bias, ids, ent = ctx.saved_tensors
        temperature, entropy, rows = ctx.settings
        need_hidden, need_weight, need_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if need_bias else None
        for s in range(0, len(ids), rows):
            e = s + rows
            normal = _logits(hidden[s:e], weight, bias, temperature).log_softmax(-1)
            p = normal.exp()
            # d logp / d logits = onehot - p;   d entropy / d logits = -p (log p + entropy)
            grad = -p * grad_logp[s:e, None]
            grad.scatter_add_(1, ids[s:e, None], grad_logp[s:e, None].to(grad.dtype))
            if entropy:
                grad -= p * (normal + ent[s:e, None]) * grad_entropy[s:e, None]
            grad = (grad / temperature).to(hidden.dtype)
            if need_hidden:
                grad_hidden[s:e] = grad @ weight
            if need_weight:
                grad_weight += grad.T @ hidden[s:e]
            if need_bias:
                grad_bias += grad.sum(0)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
            None,
        )


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))
    return logits.float() / temperature


def head_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    elements: int = PLAIN_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """Log-prob of ``ids`` and entropy in nats under softmax((hidden @ weight.T + bias) / temperature).

    ``hidden`` [N, d], ``weight`` [V, d], ``bias`` [V] or None, ``ids`` [N] -> ([N], [N] or None) float32.
    Never more than about ``elements`` logits exist at once; beyond that they are computed again in the backward.
    Gradients flow to hidden, weight and bias.  Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0 to score tokens, got {temperature}")
    if hidden.shape[0] * weight.shape[0] <= elements:
        return logprobs_from_logits(_logits(hidden, weight, bias, temperature), ids, entropy=entropy)
    rows = max(1, elements // weight.shape[0])
    logp, ent = _ChunkedHead.apply(hidden, weight, bias, ids, temperature, entropy, rows)
    return logp, ent if entropy else None
