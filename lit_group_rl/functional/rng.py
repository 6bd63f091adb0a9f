"""Counter-based randomness: every draw is a function of what it is for, never of when it was made.

So a completion does not depend on its batch, on the number of processes, or on where a run was interrupted, and no
random state has to be saved.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def seed_of(*parts: object) -> int:
    """A 63-bit seed from a description, e.g. ``seed_of(run_seed, "minibatches", step)``."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@contextmanager
def seeded(*parts: object) -> Iterator[None]:
    """Run a block (dropout, a user's reward) under global generators seeded by ``parts``, then restore them."""
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    seed = seed_of(*parts)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # which without one spends a millisecond on remembering who asked, for the day that CUDA comes up
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(state[0])
        np.random.set_state(state[1])
        torch.set_rng_state(state[2])
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of splitmix64 (Steele, Lea, Flood 2014): passes BigCrush on a counter."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(keys: Sequence[int] | np.ndarray, start: int, count: int) -> Tensor:
    """Uniforms in [0, 1): element [b, t] depends on ``keys[b]`` and ``start + t`` only.  -> [B, count] float64."""
    with np.errstate(over="ignore"):
        lanes = _mix(np.asarray(keys, dtype=np.uint64) * _GOLDEN)[:, None]
        bits = _mix(lanes + np.arange(start + 1, start + count + 1, dtype=np.uint64)[None] * _GOLDEN)
    return torch.from_numpy((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def normals(keys: Sequence[int] | np.ndarray, count: int = 1) -> Tensor:
    """Standard normal draws by Box-Muller on :func:`uniforms`.  -> [B, count] float64."""
    u = uniforms(keys, 0, 2 * count)
    return (-2 * torch.log1p(-u[:, :count])).sqrt() * torch.cos(2 * torch.pi * u[:, count:])


def row_normals(row_ids: Tensor, *purpose: object) -> Tensor:
    """One standard normal draw per row, a function of its id and the purpose.  [B] -> [B] float64 on its device."""
    keys = [seed_of(*purpose, row) for row in row_ids.tolist()]
    draws = normals(keys)[:, 0] if keys else torch.zeros(0, dtype=torch.float64)
    return draws.to(row_ids.device)
