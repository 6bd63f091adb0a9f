"""Small rollout batches and loss contexts from plain lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.ratios.token import TokenRatio
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Counts, LossContext, RolloutBatch, Sample


def matrix(rows: Any) -> Tensor:
    """float64 tensor of nested lists; a tensor is passed on."""
    return rows if isinstance(rows, Tensor) else torch.tensor(rows, dtype=torch.float64)


def make_batch(
    mask: Any = None,
    *,
    scores: Sequence[float] | None = None,
    group_ids: Sequence[int] | None = None,
    rows: int | None = None,
    advantages: Any = None,
    row_role: Sequence[int] | None = None,
    truncated: Sequence[bool] | None = None,
    solved: Sequence[bool] | None = None,
    rewards: Mapping[str, Sequence[float]] | None = None,
    **tensors: Any,
) -> RolloutBatch:
    """A batch of one-token prompts.  Without a mask every row has one trained token; missing scores stay None.

    ``advantages`` [B] or [B, T]; ``tensors`` are further [B, T] fields (old_logp, behaviour_logp, values, ...).
    """
    if mask is None:
        count = rows or len(scores if scores is not None else group_ids if group_ids is not None else advantages)
        mask = [[1]] * count
    kept = torch.as_tensor(mask).bool()
    b, t = kept.shape
    fields = {name: matrix(value) for name, value in tensors.items()}
    fields.setdefault("behaviour_logp", torch.zeros(b, t, dtype=torch.float64))
    if advantages is not None:
        advantages = matrix(advantages)
        advantages = advantages[:, None].expand(b, t) if advantages.dim() == 1 else advantages
        fields["advantages"] = torch.where(kept, advantages, 0.0)
    return RolloutBatch(
        prompt_ids=torch.ones(b, 1, dtype=torch.long),
        prompt_mask=torch.ones(b, 1, dtype=torch.bool),
        completion_ids=torch.ones(b, t, dtype=torch.long),
        completion_mask=kept.clone(),
        mask=kept,
        group_ids=torch.tensor(list(group_ids) if group_ids is not None else [0] * b),
        row_ids=torch.arange(b),
        truncated=torch.tensor(list(truncated) if truncated is not None else [False] * b),
        temperature=1.0,
        samples=[Sample("", "", None, {}, int(n), False) for n in kept.sum(1)],
        row_role=torch.tensor(list(row_role) if row_role is not None else [0] * b),
        scores=None if scores is None else matrix(list(scores)),
        solved=None if solved is None else torch.tensor([bool(x) for x in solved]),
        rewards={name: matrix(list(column)) for name, column in (rewards or {}).items()},
        **fields,
    )


def counts_of(mask: Tensor, group_ids: Tensor) -> Counts:
    """The normalisers of a minibatch with this mask."""
    rows = mask.any(1)
    return Counts(float(mask.sum()), float(rows.sum()), float(len(torch.unique(group_ids[rows]))))


def make_context(
    batch: RolloutBatch,
    logp: Any,
    *,
    ratio: ImportanceRatio | None = None,
    clip_policy: Any = None,
    entropy: Any = None,
    step: int = 0,
    seed: int = 1,
) -> LossContext:
    """What the loss components see of a batch under a policy with these log-probs, as the module puts it together."""
    logp = matrix(logp)
    old = logp.detach() if batch.old_logp is None else batch.old_logp
    token_log_ratio = torch.where(batch.mask, logp - old, torch.zeros_like(logp))
    ratio = ratio or TokenRatio()
    if clip_policy is not None:
        token_log_ratio = clip_policy.pre(token_log_ratio, batch.advantages, batch.mask)
    return LossContext(
        batch=batch,
        logp=logp,
        log_ratio=ratio.perturbed(ratio.log_ratio(token_log_ratio, batch.mask), batch),
        entropy=None if entropy is None else matrix(entropy),
        counts=counts_of(batch.mask, batch.group_ids),
        clock=Clock(step, 100),
        seed=seed,
        metrics=MetricBag(),
    )


def with_grad(rows: Any) -> Tensor:
    """float64 leaf tensor that takes a gradient."""
    return matrix(rows).clone().requires_grad_()
