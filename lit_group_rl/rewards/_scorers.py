"""Scorers that may hang or raise on what a model writes.  Run as a script in an own process: it imports no torch.

Reads pickled requests from its parent, writes one JSON line for each: {"score": number or null} or {"error": text}.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import signal
import struct
import sys
from typing import Any

_datasets: dict[str, Any] = {}


def math_verify(gold: str, answer: str) -> float | None:
    """1 if the answer equals the gold mathematically, else 0; None where the gold cannot be read."""
    import math_verify as library

    # the parent's limit bounds the time, so the library's own alarms are off
    parsed = library.parse(gold, parsing_timeout=None)
    # between dollars any sentence parses, as a product of its letters
    if not parsed and not re.search(r"[A-Za-z]{2,}\s+[A-Za-z]{2,}", gold):
        parsed = library.parse(f"${gold}$", parsing_timeout=None)
    if not parsed:
        return None
    found = library.parse(answer, parsing_timeout=None)
    return float(library.verify(parsed, found, timeout_seconds=None))


def reasoning_gym(task: str, config: dict[str, Any], entry: dict[str, Any], answer: str) -> float:
    """The score that the task's own scorer gives."""
    key = repr((task, sorted(config.items())))
    if key not in _datasets:
        import reasoning_gym as library

        _datasets[key] = library.create_dataset(task, size=1, seed=0, **config)
    return float(_datasets[key].score_answer(answer=answer, entry=entry))


def warm(library: str) -> float:
    """Import a library, so that later calls are not charged for it."""
    importlib.import_module(library)
    return 1.0


def sleep(seconds: float) -> float:
    """Does nothing for a while: lets a time limit be tried."""
    import time

    time.sleep(seconds)
    return 1.0


def _die_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _read(stream: Any, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        sys.exit(0)
    return data


def main() -> None:
    """Answer requests until the parent closes the pipe."""
    _die_with_parent()
    # what a library prints must not mix with the answers
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    while True:
        (size,) = struct.unpack("<Q", _read(source, 8))
        name, arguments = pickle.loads(_read(source, size))
        try:
            reply = {"score": globals()[name](*arguments)}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
