"""Sums and gathers over processes; the identity when there is one.  Every process must call them equally often."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def all_sum(values: Tensor) -> Tensor:
    """Sum over processes, detached.  Any shape, equal on all of them."""
    values = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def all_max(values: Tensor) -> Tensor:
    """Largest over processes, detached."""
    values = values.detach().clone()
    if world_size() > 1:
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def all_rows(values: Tensor) -> Tensor:
    """Rows of all processes in order of rank; numbers of rows may differ.  [b, ...] -> [sum b, ...], detached."""
    values = values.detach()
    if world_size() == 1:
        return values
    counts = torch.zeros(world_size(), dtype=torch.long, device=values.device)
    counts[rank()] = len(values)
    counts = all_sum(counts)
    padded = values.new_zeros(int(counts.max()), *values.shape[1:])
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in range(world_size())]
    dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, counts.tolist(), strict=True)])


def all_objects(value: object) -> list[object]:
    """One small Python object from each process, in order of rank."""
    if world_size() == 1:
        return [value]
    out: list[object] = [None] * world_size()
    dist.all_gather_object(out, value)
    return out


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()
