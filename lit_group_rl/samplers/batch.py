"""Put token lists together into a rollout batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.types import POLICY, Prompt, RolloutBatch, Sample

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy

MAX_MEMBERS = 1 << 20
"""Row id = group id * this + member."""


def left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """(ids [B, S], mask [B, S]) with the padding in front."""
    lengths = torch.tensor([len(r) for r in rows])
    width = int(lengths.max())
    mask = torch.arange(width) >= width - lengths[:, None]
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    ids[mask] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids.to(device), mask.to(device)


def build_batch(
    policy: HFPolicy,
    *,
    prompts: Sequence[Prompt],
    prompt_ids: Sequence[Sequence[int]],
    completion_ids: Tensor,
    completion_mask: Tensor,
    truncated: Tensor,
    behaviour_logp: Tensor,
    group_ids: Tensor,
    members: Tensor,
    temperature: float,
    exact_logp: bool,
    entropy: Tensor | None = None,
    role: int = POLICY,
    max_new_tokens: int = 0,
    written: Tensor | None = None,
    turns: Sequence[tuple[str, ...]] | None = None,
) -> RolloutBatch:
    """The batch of drawn rows, with the text of each completion decoded once for the rewards."""
    device = completion_ids.device
    ids, prompt_mask = left_padded(prompt_ids, policy.pad_id, device)
    lengths = completion_mask.sum(1).tolist()
    own = completion_mask if written is None else written
    cut = truncated.tolist()
    texts = policy.decode([row[:n] for row, n in zip(completion_ids.tolist(), lengths, strict=True)])
    samples = [
        Sample(p.text, text, p.answer, p.fields, n, c, said)
        for p, text, n, c, said in zip(
            prompts, texts, own.sum(1).tolist(), cut, turns or [()] * len(texts), strict=True
        )
    ]
    metrics = MetricBag()
    if turns is not None:
        metrics.mean("episode/turns", sum(map(len, turns)), len(turns))
        metrics.mean("episode/reply_tokens", (completion_mask & ~own).sum(), len(turns))
    return RolloutBatch(
        prompt_ids=ids,
        prompt_mask=prompt_mask,
        completion_ids=completion_ids,
        completion_mask=completion_mask,
        mask=own.clone(),
        written=written,
        group_ids=group_ids.to(device),
        row_ids=(group_ids * MAX_MEMBERS + members).to(device),
        truncated=truncated,
        temperature=temperature,
        behaviour_logp=behaviour_logp,
        samples=samples,
        row_role=torch.full((len(completion_ids),), role, dtype=torch.long, device=device),
        exact_logp=exact_logp,
        max_new_tokens=max_new_tokens,
        entropy=entropy,
        metrics=metrics,
    )
