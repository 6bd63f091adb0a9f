"""Checkpoints at RL-step boundaries that survive: written aside, hashed, renamed, and only then pointed to.

    checkpoints/step_000040/   weights.safetensors   state.pt   manifest.json
    checkpoints/last           the name of the newest good one
    checkpoints/best           the name of the one with the best held-out accuracy

``state.pt`` holds plain data and tensors only and is read with torch's restricted loader, without a fallback.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import pickle
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lit_group_rl import parallel
from lit_group_rl.functional.collectives import rank, world_size
from lit_group_rl.types import RecipeError

if TYPE_CHECKING:
    from lit_group_rl.engine import Engine
    from lit_group_rl.policy import HFPolicy

FORMAT = 1
WEIGHTS, STATE, MANIFEST, LOCK = "weights.safetensors", "state.pt", "manifest.json", "lock"
log = logging.getLogger(__name__)


@dataclass
class Checkpoint:
    """A read checkpoint."""

    folder: Path
    weights: dict[str, torch.Tensor]
    state: dict[str, Any]


class BadCheckpoint(Exception):
    """A checkpoint that is incomplete or altered."""


class NotFinite(ValueError):
    """A state that is not worth keeping."""


# ---- writing


_locks: list[Any] = []


def claim(run: Path) -> str | None:
    """Lock a run's folder until this process ends, and try to write into it; says what is wrong if that fails.

    The lock is the operating system's: it goes with the process, however that ends.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = open(run / LOCK, "a+", encoding="utf-8")  # noqa: SIM115
    except OSError as e:
        return f"run_root: {run} cannot be written: {e.strerror}. Set --run_root to a folder that can"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        if any(other.name == str(run / LOCK) for other in _locks):
            return None  # this process trains in the same folder again
        return f"resume: {run} is being written by another process ({holder}). Wait for it, or start a new run"
    lock.truncate(0)
    lock.write(f"host {socket.gethostname()}, pid {os.getpid()}\n")
    lock.flush()
    _locks.append(lock)
    return None


def plain_state(module: Engine, pending: dict[str, float] | None = None) -> dict[str, Any]:
    """All that a checkpoint holds beside weights and optimizer; a copy that later steps do not touch.

    ``pending`` are the metrics of a step whose evaluation is still to be made.
    """
    trainer: Any = module.trainer
    return {
        "format": FORMAT,
        "rl_step": module.rl_step,
        "pending": pending,
        "module": module.component_state(),
        "data": module.data.state_dict(),
        "callbacks": {cb.state_key: s for cb in trainer.callbacks if (s := cb.state_dict())},
        "world_size": world_size(),
        "reference": module.reference_print,
    }


def save(module: Engine, folder: Path, keep: int, plain: dict[str, Any]) -> Path | None:
    """Write an RL-step boundary below ``folder``; on the first process only, after gathering from all.

    Keeps the newest ``keep`` and the best.  Raises OSError when it cannot be written and NotFinite when it would hold
    such a value; the old ones are then untouched.
    """
    trainer: Any = module.trainer
    weights = {f"{name}.{k}": v for name, net in _nets(module).items() for k, v in parallel.full_state(net).items()}
    state = plain | {"optimizer": parallel.full_optimizer_state(module, trainer.optimizers[0])}
    if rank() != 0:
        return None
    _refuse_not_finite(weights, state["optimizer"]["state"])
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".writing_*"):  # of a process that was killed; this one holds the lock
        shutil.rmtree(left, ignore_errors=True)
    target = folder / f"step_{plain['rl_step']:06d}"
    aside = folder / f".writing_{target.name}_{os.getpid()}"
    _refuse_full_disk(folder, weights, state["optimizer"]["state"])
    aside.mkdir()
    try:
        _write(aside, weights, state)
        old = folder / f".writing_old_{target.name}"
        if target.exists():
            os.replace(target, old)
        os.replace(aside, target)
        _sync_folder(folder)
        point(folder, "last", target.name)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _prune(folder, keep)
    return target


def _nets(module: Engine) -> dict[str, Any]:
    return {"policy": module.policy.net, **{f"models.{k}": m for k, m in module.models.items()}}


def _refuse_not_finite(weights: dict[str, torch.Tensor], moments: dict[str, dict[str, Any]]) -> None:
    named = {**weights, **{f"optimizer {n} {k}": v for n, one in moments.items() for k, v in one.items()}}
    for name, value in named.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not torch.isfinite(value).all():
            raise NotFinite(f"{name} holds NaN or Inf")


def _refuse_full_disk(folder: Path, weights: dict[str, torch.Tensor], moments: dict[str, dict[str, Any]]) -> None:
    tensors = [*weights.values(), *(v for one in moments.values() for v in one.values() if isinstance(v, torch.Tensor))]
    need = sum(t.numel() * t.element_size() for t in tensors)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise OSError(errno.ENOSPC, f"{need / 2**20:.1f} MiB are needed, {free / 2**20:.1f} MiB are free", str(folder))


def _write(aside: Path, weights: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    seen: dict[int, str] = {}
    tied: dict[str, str] = {}
    plain = {}
    for name, tensor in weights.items():
        first = seen.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if first == name:
            plain[name] = tensor.contiguous()
        else:
            tied[name] = first
    try:
        save_file(plain, str(aside / WEIGHTS), metadata={"tied": json.dumps(tied)})
        torch.save(state, aside / STATE)
    except (SafetensorError, RuntimeError) as e:  # what the two say when the disk is full
        raise OSError(errno.EIO, str(e), str(aside)) from e
    manifest = {"format": FORMAT, "rl_step": state["rl_step"], "files": {}}
    for name in (WEIGHTS, STATE):
        _sync_file(aside / name)
        manifest["files"][name] = {"size": (aside / name).stat().st_size, "sha256": _sha256(aside / name)}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    _sync_file(aside / MANIFEST)


def point(folder: Path, pointer: str, name: str) -> None:
    """Let ``last`` or ``best`` name a checkpoint, atomically."""
    aside = folder / f".{pointer}_{os.getpid()}"
    aside.write_text(name, encoding="utf-8")
    _sync_file(aside)
    os.replace(aside, folder / pointer)


def _prune(folder: Path, keep: int) -> None:
    pinned = {_pointed(folder, p) for p in ("last", "best")}
    for old in sorted(folder.glob("step_*"))[:-keep]:
        if old.name not in pinned:
            shutil.rmtree(old, ignore_errors=True)


def _pointed(folder: Path, pointer: str) -> str | None:
    try:
        return (folder / pointer).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _sync_file(path: Path) -> None:
    with open(path, "rb") as f:
        os.fsync(f.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(weights: dict[str, torch.Tensor]) -> str:
    """A hash of names, shapes and a few thousand values of each tensor: cheap, and other weights have another."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        some = tensor.detach().flatten()[:: max(1, tensor.numel() // 2048)]
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(some.to("cpu", torch.float64).numpy().tobytes())
    return digest.hexdigest()


# ---- reading


def read(folder: Path) -> Checkpoint:
    """One checkpoint, its files held against the manifest.  Raises BadCheckpoint saying what is wrong."""
    from safetensors import SafetensorError, safe_open

    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, expected in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != expected["size"]:
                raise BadCheckpoint(f"{folder / name} has {size} bytes, not {expected['size']}")
            if _sha256(folder / name) != expected["sha256"]:
                raise BadCheckpoint(f"{folder / name} was altered: its SHA-256 is not the manifest's")
        with safe_open(str(folder / WEIGHTS), framework="pt") as f:
            weights = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
            tied = json.loads((f.metadata() or {}).get("tied", "{}"))
        weights |= {name: weights[first] for name, first in tied.items()}
        state = torch.load(folder / STATE, weights_only=True, map_location="cpu")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as e:
        raise BadCheckpoint(f"{folder}: {e}") from e
    except (RuntimeError, EOFError, pickle.UnpicklingError) as e:
        raise BadCheckpoint(f"{folder / STATE} cannot be read: {str(e).splitlines()[0]}") from e
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else None
        raise BadCheckpoint(f"{folder} has format {found}, this version reads {FORMAT}")
    return Checkpoint(folder, weights, state)


def newest(run: Path, pointer: str = "last") -> Checkpoint | None:
    """The checkpoint a run goes on from: the pointed one, or the newest good one, saying what was passed over."""
    folder = run / "checkpoints"
    names = [n for n in [_pointed(folder, pointer)] if n]
    names += [p.name for p in sorted(folder.glob("step_*"), reverse=True) if p.name not in names]
    for name in names:
        try:
            return read(folder / name)
        except BadCheckpoint as e:
            log.warning("checkpoint passed over: %s", e)
    return None


def restore_weights(module: Engine, checkpoint: Checkpoint) -> None:
    """Weights of the policy and the auxiliary models, from a checkpoint of the same architecture."""
    for name, net in _nets(module).items():
        mine = {k: v for k, v in checkpoint.weights.items() if k.startswith(name + ".")}
        mine = {k.removeprefix(name + "."): v for k, v in mine.items()}
        expected = {k: tuple(v.shape) for k, v in net.state_dict().items()}
        found = {k: tuple(v.shape) for k, v in mine.items()}
        wrong = [k for k in sorted(expected.keys() | found.keys()) if expected.get(k) != found.get(k)]
        if wrong:
            shown = "; ".join(f"{k}: run {expected.get(k)}, checkpoint {found.get(k)}" for k in wrong[:3])
            raise RecipeError(
                f"resume: {checkpoint.folder} belongs to another architecture ({len(wrong)} tensors differ: {shown}). "
                f"Resume with the policy, critic and evaluator of that run (see its config.yaml)"
            )
        parallel.load_full_state(net, mine)


def restore_training(module: Engine, checkpoint: Checkpoint) -> None:
    """Optimizer and callbacks; counters and data position are taken back in ``setup``, before there is a model."""
    trainer: Any = module.trainer
    parallel.load_full_optimizer_state(module, trainer.optimizers[0], checkpoint.state["optimizer"])
    for callback in trainer.callbacks:
        if callback.state_key in checkpoint.state["callbacks"]:
            callback.load_state_dict(checkpoint.state["callbacks"][callback.state_key])


def restore(module: Engine, checkpoint: Checkpoint) -> None:
    """Everything, into a run that is under way."""
    restore_weights(module, checkpoint)
    restore_training(module, checkpoint)
    module.rl_step = checkpoint.state["rl_step"]
    module.load_component_state(checkpoint.state["module"])
    module.data.load_state_dict(checkpoint.state["data"])
    module.recorder.start(module)
    module.boundary = plain_state(module)


def load_policy(policy: HFPolicy, run: Path, which: str = "best") -> Checkpoint:
    """Read a run's weights into ``policy``, which is that of the run and not loaded yet."""
    checkpoint = newest(run, which)
    if checkpoint is None:
        raise RecipeError(f"run: {run} holds no usable checkpoint. Give a run folder such as runs/grpo/0001")
    policy.load()
    assert policy.net is not None
    mine = {k.removeprefix("policy."): v for k, v in checkpoint.weights.items() if k.startswith("policy.")}
    parallel.load_full_state(policy.net, mine)
    return checkpoint
