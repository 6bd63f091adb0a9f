"""The chance that at least one of k draws is right."""

from __future__ import annotations

import torch
from torch import Tensor


def none_right(total: Tensor, wrong: Tensor, k: int | Tensor) -> Tensor:
    """Chance that k draws without replacement out of ``total`` are all among the ``wrong``: C(wrong, k) / C(total, k).

    As the product of (wrong - j) / (total - j) for j < k, which neither overflows nor loses the exact 0 and 1.
    A k above ``total`` counts as ``total``.  [B], [B] -> [B] float64.
    """
    total, wrong = total.double(), wrong.double()
    k = torch.as_tensor(k, device=total.device).minimum(total)
    out = torch.ones_like(total)
    for j in range(int(k.max()) if len(total) else 0):
        factor = (wrong - j).clamp(min=0) / (total - j).clamp(min=1)
        out = torch.where(j < k, out * factor, out)
    return out


def pass_at_k(total: int, right: int, k: int) -> float:
    """Unbiased estimate of pass@k from ``right`` of ``total`` completions: 1 - C(total - right, k) / C(total, k).

    Raises ValueError unless 1 <= k <= total.  Source: Codex, arXiv:2107.03374, eq. 1.
    """
    if not 1 <= k <= total:
        raise ValueError(f"pass@{k} cannot be estimated from {total} completions: draw at least {k} per prompt")
    return 1.0 - float(none_right(torch.tensor([total]), torch.tensor([total - right]), k))
