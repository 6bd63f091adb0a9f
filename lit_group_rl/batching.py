"""Cut a rollout into minibatches and those into micro-batches, without any effect on the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.functional.collectives import all_max, all_rows, all_sum, rank
from lit_group_rl.functional.groups import group_index
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.types import Counts, RolloutBatch, Sample


def minibatches(batch: RolloutBatch, count: int, *key: object) -> list[Tensor]:
    """Row indices of this process for each minibatch: whole groups, shuffled by ``key``, near-equal numbers of groups.

    The shuffle is over the groups of all processes, so the union over processes does not depend on layout.  With fewer
    groups than ``count`` there are fewer minibatches.
    """
    groups = torch.unique(all_rows(batch.group_ids)).cpu()
    groups = groups[groups >= 0]  # a stand-in belongs to none
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed_of("minibatches", *key)))
    parts = groups[order].tensor_split(min(count, len(groups))) if len(groups) else []
    return [torch.isin(batch.group_ids, part.to(batch.group_ids.device)).nonzero().squeeze(1) for part in parts]


def microbatches(
    batch: RolloutBatch, max_tokens: int, *, whole_groups: bool, shared_prompts: bool = False
) -> list[Tensor]:
    """Row indices packed under ``max_tokens`` tokens, longest first; at least one row (or group) each.

    With ``shared_prompts`` a prompt counts once for its rows, which then stay together, and nothing is padded; a prompt
    of more than half ``max_tokens`` takes as many tokens of completions again.  Otherwise every row counts as long as
    the longest.  Every process gets the same number of micro-batches: empty ones are added, as sharded forwards must
    come in step.
    """
    device = batch.mask.device
    prompt, own = batch.prompt_mask.sum(1).tolist(), batch.lengths.tolist()
    group = group_index(batch.group_ids)[0].tolist()
    members: dict[int, list[int]] = {}
    for row, g in enumerate(group):
        members.setdefault(g, []).append(row)
    units = list(members.values())
    if not whole_groups:
        if shared_prompts:
            units.sort(key=lambda rows: -max(own[r] for r in rows))
            units = [[r] for rows in units for r in sorted(rows, key=lambda r: -own[r])]
        else:
            units = [[r] for rows in units for r in rows]
    if whole_groups or not shared_prompts:
        units.sort(key=lambda rows: -max(prompt[r] + own[r] for r in rows))

    packs: list[list[int]] = []
    seen: set[int] = set()  # groups whose prompt the present pack holds
    cost = longest = 0
    for rows in units:  # the rows of a unit are of one group
        g, length, limit = group[rows[0]], max(prompt[r] + own[r] for r in rows), max_tokens
        if shared_prompts:
            tokens = prompt[rows[0]]
            alone = sum(own[r] for r in rows) + tokens
            grown = cost + alone - (tokens if g in seen else 0)
            limit = max(limit, 2 * tokens)  # half a micro-batch at most is a prompt that another one has too
        else:
            alone = len(rows) * length
            grown = (len(packs[-1]) + len(rows)) * max(longest, length) if packs else alone
        if packs and grown <= limit:
            packs[-1] += rows
            seen.add(g)
            cost, longest = grown, max(longest, length)
        else:
            packs.append(list(rows))
            cost, longest, seen = alone, length, {g}
    most = int(all_max(torch.tensor(len(packs), device=device)))
    packs += [[]] * (most - len(packs))
    return [torch.tensor(sorted(pack), dtype=torch.long, device=device) for pack in packs]


def weightless(batch: RolloutBatch) -> RolloutBatch:
    """One row with which a process that has none left takes part in what all of them compute; no token of it counts.

    It is no member of any group: its group id is negative, its score abstains.
    """
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(batch):
        value = getattr(batch, f.name)
        if isinstance(value, Tensor):
            changes[f.name] = value.new_zeros(1, *value.shape[1:])
        elif f.name in ("rewards", "features"):
            changes[f.name] = {k: v.new_zeros(1, *v.shape[1:]) for k, v in value.items()}
    for seen in ("prompt_mask", "completion_mask", *(["written"] if batch.written is not None else [])):
        changes[seen] = torch.ones_like(changes[seen])
    for stand_in in ("group_ids", "row_ids"):
        changes[stand_in] = changes[stand_in] - 1 - rank()
    if batch.scores is not None:
        changes["scores"] = torch.full_like(changes["scores"], torch.nan)
    return dataclasses.replace(batch, **changes, samples=[Sample("", "", None, {}, 1, False)])


def counts(masks: list[Tensor], group_ids: Tensor) -> list[Counts]:
    """Tokens, rows and groups under each mask [B, T], over all processes, in one exchange."""
    table = torch.zeros(len(masks), 3, dtype=torch.float64, device=group_ids.device)
    for i, mask in enumerate(masks):
        rows = mask.any(1)
        table[i] = torch.stack(
            [mask.sum(), rows.sum(), torch.tensor(len(torch.unique(group_ids[rows])), device=mask.device)]
        )
    return [Counts(*row) for row in all_sum(table).tolist()]


@torch.no_grad()
def in_parts(
    batch: RolloutBatch, max_tokens: int, function: Callable[[RolloutBatch], Tensor], *, shared_prompts: bool = False
) -> Tensor:
    """A result [B, T] computed micro-batch by micro-batch, without gradient, float32.

    Every process calls ``function`` equally often, on a row without weight where it has none left.
    """
    out = torch.zeros(batch.mask.shape, device=batch.mask.device)
    for index in microbatches(batch, max_tokens, whole_groups=False, shared_prompts=shared_prompts):
        part = function(batch.rows(index) if len(index) else weightless(batch))
        if len(index):
            out[index, : part.shape[1]] = part.detach().float()
    return out
