"""Scoring in another process with a time limit, because nothing else stops a computation that hangs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import pickle
import selectors
import struct
import subprocess
import sys
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import require_number
from lit_group_rl.types import RecipeError, Sample

SCRIPT = Path(__file__).with_name("_scorers.py")
START_SECONDS = 120.0
"""The first call of a process also imports its library, which may take long on a busy machine."""


class ScorerTimeout(Exception):
    """The call ran past its limit; its process is gone."""


class ScorerError(Exception):
    """The scorer raised; carries the message of its exception."""


class Worker:
    """One process that runs the functions of ``_scorers.py``; started when needed, killed when a call hangs.

    Calls are bounded by wall-clock time.  This is no sandbox: the process may do what the user may do.
    """

    def __init__(self, library: str) -> None:
        """``library`` is imported when the process starts, outside the limit of any call."""
        self.library = library
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], object] = lambda: None
        self._buffer = b""

    def call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """The function's result.  Raises ScorerTimeout after ``seconds``, ScorerError if the function raises."""
        if self._process is None or self._process.poll() is not None:
            self._start()
            self._ask("warm", (self.library,), START_SECONDS)
        return self._ask(function, arguments, seconds)

    def _ask(self, function: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        request = pickle.dumps((function, arguments))
        try:
            self._process.stdin.write(struct.pack("<Q", len(request)) + request)
            self._process.stdin.flush()
            line = self._line(time.monotonic() + seconds)
        except (ScorerTimeout, OSError):
            self.close()
            raise
        reply = json.loads(line)
        if "error" in reply:
            raise ScorerError(reply["error"])
        return reply["score"]

    def close(self) -> None:
        """Kill the process, if there is one."""
        self._stop()
        self._process = None

    def _start(self) -> None:
        self.close()
        # -P: this folder has modules that are named as the libraries they use
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._buffer = b""
        self._stop = weakref.finalize(self, _kill, self._process)

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ScorerTimeout
                part = os.read(pipe, 1 << 16)
                if not part:
                    raise ConnectionError("the scoring process ended before it answered")
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


class LimitedReward(Reward):
    """A reward whose scorer runs in a worker process, at most ``seconds`` for each completion."""

    seconds: float
    """Wall-clock limit of one completion."""
    batch_seconds: float
    """Wall-clock limit of one process's completions of a step; what is left then counts as timed out."""
    on_timeout: str
    """'minimum' scores 0, so that a policy does not learn to hide wrong answers behind a hang; or 'abstain'."""
    library: ClassVar[str]
    """What the worker imports, and the extra that installs it."""
    extra: ClassVar[str]

    def __post_init__(self) -> None:
        require_number(self, "seconds", low=0.01)
        require_number(self, "batch_seconds", low=0.01)
        if importlib.util.find_spec(self.library) is None:
            raise RecipeError(
                f"{type(self).__name__}: the package {self.library} is not installed. "
                f"Install it with: pip install 'lit-group-rl[{self.extra}]'"
            )
        object.__setattr__(self, "_worker", Worker(self.library))
        object.__setattr__(self, "_timeouts", 0)

    @abstractmethod
    def request(self, sample: Sample) -> tuple[Any, ...] | float | None:
        """Name of the scorer and its arguments, or the score itself where nothing has to be computed."""

    def score(self, samples: Sequence[Sample]) -> list[float | Exception | None]:
        end = time.monotonic() + self.batch_seconds
        return [self._one(sample, end) for sample in samples]

    def _one(self, sample: Sample, end: float) -> float | Exception | None:
        request = self.request(sample)
        if not isinstance(request, tuple):
            return request
        try:
            left = end - time.monotonic()
            if left <= 0:
                raise ScorerTimeout
            value = self._worker.call(*request, seconds=min(self.seconds, left))  # type: ignore[attr-defined]
        except ScorerTimeout:
            object.__setattr__(self, "_timeouts", self._timeouts + 1)  # type: ignore[attr-defined]
            return 0.0 if self.on_timeout == "minimum" else None
        except (ScorerError, OSError) as error:
            return error
        # a scorer that gives NaN for junk must not have it taken for an abstention
        return value if value is None or math.isfinite(value) else 0.0

    def take_timeouts(self) -> int:
        count: int = self._timeouts  # type: ignore[attr-defined]
        object.__setattr__(self, "_timeouts", 0)
        return count
