"""How a run ended: its exit code, and with several processes the error of the one that failed, last on the screen."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lit_group_rl.cli.refusal import Refusal, shown
from lit_group_rl.pulse import PULSE
from lit_group_rl.rewards.runner import RewardBroken
from lit_group_rl.signals import PeerFailed

FOLDER = "errors"
PATIENCE = 1.5
"""Seconds in which all processes have told what ended them."""


class OutOfMemory(RuntimeError):
    """A step needed more memory than there is."""

    exit_code = 3


def explained(error: Exception, micro_batch_tokens: int) -> Exception:
    """For an error of the allocator, one that says in which stage it came and which setting to halve."""
    first = " ".join(str(error).split())[:200]
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "can't allocate memory" not in first:
        return error
    drawing = PULSE.stage in ("sample", "eval")
    fix = (
        "Halve model.policy.decode_rows"
        if drawing
        else f"Halve model.micro_batch_tokens (now {micro_batch_tokens}), or set model.policy.gradient_checkpointing"
    )
    return OutOfMemory(f"out of memory in stage {PULSE.stage}, {PULSE.what}: {first}. {fix}; the run can be resumed")


def code_of(error: BaseException) -> int | None:
    """3 for a run that stopped by itself saying why, None for a fault of the program."""
    return 3 if isinstance(error, RewardBroken) else getattr(error, "exit_code", None)


def failed_together(error: Exception, folder: Path, rank: int) -> int:
    """Tell the error that came first, whichever process had it; returns the exit code.

    The others have errors too, of exchanges that broke off.  They would bury the cause.
    """
    _tell(error, folder, rank)
    time.sleep(PATIENCE)
    first = _first(folder)
    if first["rank"] == rank:
        print(first["text"], file=sys.stderr, flush=True)
    if rank == 0:
        if first["rank"] != 0:
            time.sleep(PATIENCE)  # it prints its traceback
        place = shown(folder / FOLDER / f"rank_{first['rank']}.json")
        print(f"stopped: process {first['rank']} failed: {first['line']} ({place})", file=sys.stderr, flush=True)
    elif _heard_by_leaving():
        return 0
    return int(first["code"])


def _tell(error: Exception, folder: Path, rank: int) -> None:
    code = code_of(error)
    said = "error" if isinstance(error, Refusal) else "stopped"
    text = "".join(traceback.format_exception(error)) if code is None else f"{said}: {error}"
    line = traceback.format_exception_only(error)[-1].strip() if code is None else str(error)
    told = {"rank": rank, "when": time.time(), "code": code or 1, "line": line, "text": text}
    told["echo"] = isinstance(error, PeerFailed)
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        (folder / FOLDER / f"rank_{rank}.json").write_text(json.dumps(told), encoding="utf-8")
    except OSError:
        print(text, file=sys.stderr, flush=True)


def _first(folder: Path) -> dict[str, Any]:
    """What the first process to fail has told; files of earlier ends of the same run are older than a minute."""
    told = [json.loads(p.read_text(encoding="utf-8")) for p in (folder / FOLDER).glob("rank_*.json")]
    fresh = [t for t in told if time.time() - t["when"] < 60] or [
        {"rank": -1, "code": 1, "when": 0.0, "echo": False, "line": "see above", "text": ""}
    ]
    return min(fresh, key=lambda t: (t["echo"], t["when"]))


def _heard_by_leaving() -> bool:
    """Whether the first process hears of this one's end, and so speaks the last word and gives the exit code.

    With gloo its exchange breaks off as soon as this process has gone.  Lightning's launcher must then not take the
    end for a crash: it would kill the first process before that has kept its state and spoken.
    """
    external = "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_PROCID" in os.environ
    return not external and dist.is_initialized() and dist.get_backend() == "gloo"
