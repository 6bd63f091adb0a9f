"""Lay the completions of a prompt behind one copy of it, so that the prompt is computed once for several of them.

    [ prompt | completion 1 | completion 2 | ... ]      positions restart after the prompt in every completion

A completion sees the prompt and itself only.  The result is that of separate rows beyond rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

MAX_WIDTH = 4096
"""Longest packed row: the mask is quadratic in it."""


@dataclass(frozen=True)
class Packed:
    """Inputs of a forward over packed rows, and where each completion token's prediction comes out."""

    input_ids: Tensor
    """[N, W]"""
    attention_mask: Tensor
    """[N, 1, W, W] additive, in the model's type."""
    position_ids: Tensor
    """[N, W]"""
    predicts: Tensor
    """[B, T] flat index into [N * W] of the state that predicts the token; 0 off the mask."""


def members_per_row(prompt: int, completion: float, members: int, width: int, inner: int) -> int:
    """How many completions to lay behind one prompt: the number with the least work per completion.

    Work of a token: its matrix products, about 4 d^2 + 3 d f (``width`` d, ``inner`` f), and d per token it may see,
    masked or not.  Long completions gain nothing and would pay for each other's squares.
    """
    linear = 4 * width**2 + 3 * width * inner

    def work(k: int) -> float:
        tokens = prompt + k * completion
        return tokens * (linear + 2 * width * tokens) / k

    fits = [k for k in range(1, members + 1) if k == 1 or prompt + k * completion <= MAX_WIDTH]
    return min(fits, key=work)


def pack(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    group_ids: Tensor,
    dtype: torch.dtype,
    width: int,
    inner: int,
) -> Packed | None:
    """Packed inputs, or None where packing saves nothing.  Shapes as in :meth:`CausalNet.forward`; rows with equal
    ``group_ids`` [B] have the same prompt."""
    prompts = [row[keep] for row, keep in zip(prompt_ids.cpu().numpy(), prompt_mask.cpu().numpy(), strict=True)]
    lengths = completion_mask.sum(1).tolist()
    completions = completion_ids.cpu().numpy()
    groups: dict[int, list[int]] = {}
    for row, g in enumerate(group_ids.tolist()):
        groups.setdefault(g, []).append(row)
    rows: list[list[int]] = []
    for members in groups.values():
        members = sorted(members, key=lambda r: lengths[r])
        mean = sum(lengths[r] for r in members) / len(members)
        k = members_per_row(len(prompts[members[0]]), mean, len(members), width, inner)
        rows += [members[s : s + k] for s in range(0, len(members), k)]
    if len(rows) == len(lengths):
        return None
    w = max(len(prompts[m[0]]) + sum(lengths[r] - 1 for r in m) for m in rows)
    ids = np.zeros((len(rows), w), dtype=np.int64)
    positions = np.zeros((len(rows), w), dtype=np.int64)
    segment = np.full((len(rows), w), -1, dtype=np.int64)  # 0 the prompt, 1.. the completions, -1 unused
    predicts = np.zeros(completions.shape, dtype=np.int64)
    for j, members in enumerate(rows):
        prompt = prompts[members[0]]
        p = len(prompt)
        ids[j, :p], positions[j, :p], segment[j, :p] = prompt, np.arange(p), 0
        at = p
        for m, row in enumerate(members, start=1):
            n = lengths[row] - 1  # nothing follows the last token
            ids[j, at : at + n] = completions[row, :n]
            positions[j, at : at + n] = np.arange(p, p + n)
            segment[j, at : at + n] = m
            predicts[row, 0] = j * w + p - 1
            predicts[row, 1 : n + 1] = j * w + np.arange(at, at + n)
            at += n
    device = prompt_ids.device
    return Packed(
        torch.from_numpy(ids).to(device),
        _mask(torch.from_numpy(segment).to(device), dtype),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(predicts).to(device),
    )


def _mask(segment: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask [N, 1, W, W]: a token sees the prompt and its own completion, itself always, nothing later."""
    query, key = segment[:, :, None], segment[:, None, :]
    place = torch.arange(segment.shape[1], device=segment.device)
    sees = ((key == query) | (key == 0)) & (place[:, None] >= place[None, :]) | torch.eye(
        len(place), dtype=torch.bool, device=segment.device
    )
    return torch.zeros(sees.shape, dtype=dtype, device=segment.device).masked_fill(
        ~sees, torch.finfo(dtype).min
    )[:, None]


@torch.no_grad()
def can_pack(model: nn.Module) -> bool:
    """Whether packed rows give what separate rows give: tried on two completions of one prompt.

    Models with windowed or linear attention are left out by their configuration, as a short try cannot show a window.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or (windowed and not getattr(config, "layer_types", None)):
        return False
    if getattr(config, "_attn_implementation", "eager") not in ("eager", "sdpa"):
        return False
    device = next(model.parameters()).device
    dtype = next(model.parameters()).dtype
    prompt = torch.tensor([[0, 1, 2], [0, 1, 2]], device=device)
    answer = torch.tensor([[1, 2, 0], [2, 1, 1]], device=device)
    yes = torch.ones_like(prompt, dtype=torch.bool)
    packed = pack(prompt, yes, answer, yes, torch.zeros(2, device=device), dtype, 10**6, 10**6)
    assert packed is not None
    was_training = model.training
    model.eval()
    try:
        plain = model(input_ids=torch.cat([prompt, answer[:, :-1]], 1), use_cache=False).logits[:, 2:]
        together = model(
            input_ids=packed.input_ids,
            attention_mask=packed.attention_mask,
            position_ids=packed.position_ids,
            use_cache=False,
        ).logits
    except (TypeError, ValueError, RuntimeError):
        return False  # a forward that takes no such mask or positions
    finally:
        model.train(was_training)
    found = together.flatten(0, 1)[packed.predicts]
    loose = 1e-4 if dtype == torch.float32 else 5e-2
    return torch.allclose(found.float(), plain.float(), atol=loose, rtol=loose)
