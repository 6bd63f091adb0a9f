"""A trust region in probabilities instead of ratios: DPPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Bounds, LossContext

DEFAULT_THRESHOLD = {"tv": 0.15, "kl": 0.05}


def binary_divergence(logp: Tensor, old_logp: Tensor, kind: str) -> Tensor:
    """Divergence of 'this token or another' between the policies, from the sampled token's probability alone.

        tv: |p - q|        kl: q log(q / p) + (1 - q) log((1 - q) / (1 - p)),   p new, q old

    [B, T] -> [B, T].  Probabilities are kept a rounding error away from 0 and 1.
    """
    p, q = logp.exp(), old_logp.exp()
    if kind == "tv":
        return (p - q).abs()
    tiny = torch.finfo(logp.dtype).eps
    p, q = p.clamp(tiny, 1 - tiny), q.clamp(tiny, 1 - tiny)
    return q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()


def keep_mask(logp: Tensor, old_logp: Tensor, advantages: Tensor, kind: str, threshold: float) -> Tensor:
    """False where the token has already moved more than ``threshold`` in the direction its advantage pushes it to.

    [B, T] -> [B, T] bool.  Source: DPPO, arXiv:2602.04879.
    """
    outward = (logp - old_logp) * advantages > 0
    return ~(outward & (binary_divergence(logp, old_logp, kind) > threshold))


@dataclass(frozen=True)
class Divergence(ClipPolicy):
    """Keeps a token's gradient while its probability has moved little; rare tokens may change their ratio a lot.

    Source: DPPO, arXiv:2602.04879.  For its loss use the importance-weighted surrogate, no division by the deviation,
    and a fixed-length aggregator.
    """

    kind: Literal["tv", "kl"] = "tv"
    """Total variation, or Kullback-Leibler divergence, of the sampled token against all others."""
    threshold: float | None = None
    """Largest divergence; null: 0.15 for tv, 0.05 for kl, as in the paper."""
    cap: float = 20.0
    """Largest importance weight."""

    needs = frozenset({"old_logp"})

    def __post_init__(self) -> None:
        require(self.threshold is None or self.threshold > 0, self, "threshold", "must be above 0")
        require(self.cap > 1, self, "cap", "must be above 1")

    def bounds(self, ctx: LossContext) -> Bounds:
        assert ctx.batch.old_logp is not None
        threshold = DEFAULT_THRESHOLD[self.kind] if self.threshold is None else self.threshold
        logp = ctx.logp.detach()
        keep = keep_mask(logp, ctx.batch.old_logp.to(logp.dtype), ctx.advantages, self.kind, threshold)
        return Bounds(cap=self.cap, keep=keep)
