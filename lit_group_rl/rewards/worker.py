"""Scoring in another process with a time limit, because nothing else stops a computation that hangs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import LifoQueue
from typing import Any, ClassVar, TypeVar

from lit_group_rl.rewards.base import Reward, ScorerError, ScorerTimeout
from lit_group_rl.schedules.base import require, require_number
from lit_group_rl.types import RecipeError, Sample

SCRIPT = Path(__file__).with_name("_scorers.py")
START_SECONDS = 120.0
"""The first call of a process also imports its library, which may take long on a busy machine."""

T = TypeVar("T")
R = TypeVar("R")


class Worker:
    """One process that runs the functions of ``_scorers.py``; started when needed, killed when a call hangs.

    Calls are bounded by wall-clock time.  This is no sandbox: the process may do what the user may do.
    """

    def __init__(self, *first: Any, quiet: bool = True) -> None:
        """``first`` is the call that makes a new process ready, outside the limit of any other; quiet drops prints."""
        self.first = first
        self.quiet = quiet
        self._process: subprocess.Popen[bytes] | None = None
        self._stop: Callable[[], object] = lambda: None
        self._buffer = b""

    def start(self) -> Any:
        """A new process; the result of its first call."""
        self.close()
        # -P: this folder has modules that are named as the libraries they use
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self.quiet else None,
            # the order of sets must not differ between a run and its resumption
            env=os.environ | {"PYTHONHASHSEED": "0"},
            # a group of its own, so that what a scorer starts ends with it
            start_new_session=True,
        )
        self._buffer = b""
        self._stop = weakref.finalize(self, _kill, self._process, os.getpid())
        return self._ask(self.first, START_SECONDS)

    def call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """The function's result.

        Raises ScorerTimeout after ``seconds``, ScorerError if the function raises or its process ends, RecipeError
        if it can never work.
        """
        if self._process is None or self._process.poll() is not None:
            self.start()
        return self._ask((function, *arguments), seconds)

    def _ask(self, request: tuple[Any, ...], seconds: float) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            data = pickle.dumps((request[0], request[1:]))
        except Exception as error:
            raise RecipeError(
                f"model.rewards: a column of the data cannot be sent to the scoring process ({error}). "
                "Leave it out, or set in_process of the FunctionReward to true"
            ) from error
        try:
            self._process.stdin.write(struct.pack("<Q", len(data)) + data)
            self._process.stdin.flush()
            line = self._line(time.monotonic() + seconds, seconds)
        except OSError:
            code = self._ended()
            raise ScorerError(f"ProcessEnded: the scoring process ended ({code}) before it answered") from None
        except BaseException:  # a signal too: the answer that is still to come would be taken for the next one
            self.close()
            raise
        reply = json.loads(line)
        if "refused" in reply:
            raise RecipeError(reply["refused"])
        if "error" in reply:
            raise ScorerError(reply["error"], reply["trace"])
        return reply["score"]

    def _ended(self) -> str:
        """How a process whose pipe broke came to its end."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        code = self._process.returncode
        self.close()
        return "no exit code" if code is None else f"exit code {code}"

    def close(self) -> None:
        """Kill the process, if there is one."""
        self._stop()
        self._process = None

    def interrupt(self) -> None:
        """From another thread: kill the process, so that a call under way raises ScorerError."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(1)  # so that the next call finds it gone

    def _line(self, deadline: float, seconds: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ScorerTimeout(f"no answer within {seconds:g} s")
                part = os.read(pipe, 1 << 16)
                if not part:
                    raise ConnectionError
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _kill(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return  # a copy made by a fork
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


class Workers:
    """Several processes that answer single calls side by side."""

    def __init__(self, count: int, *first: Any, quiet: bool = True) -> None:
        """``first`` and ``quiet`` as for :class:`Worker`."""
        self.all = [Worker(*first, quiet=quiet) for _ in range(count)]
        self._free: LifoQueue[Worker] = LifoQueue()
        for worker in reversed(self.all):
            self._free.put(worker)
        self._pool: ThreadPoolExecutor | None = None

    def call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """As :meth:`Worker.call`, by a process that has nothing to do; waits for one."""
        worker = self._free.get()
        try:
            return worker.call(function, *arguments, seconds=seconds)
        finally:
            self._free.put(worker)

    def each(self, call: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """``call`` of every item, in as many threads as there are processes; the results in order."""
        if len(self.all) == 1 or len(items) < 2:
            return [call(item) for item in items]
        # kept, because Linux ends a process with the thread that started it (die_with_parent in _scorers.py)
        self._pool = self._pool or ThreadPoolExecutor(len(self.all))
        try:
            return list(self._pool.map(call, items))
        except BaseException:  # a signal too: nothing may go on for as long as a scorer likes
            pool, self._pool = self._pool, None
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in self.all:
                worker.interrupt()
            pool.shutdown()
            raise


class LimitedReward(Reward):
    """A reward whose scorer runs in a worker process, at most ``seconds`` for each completion."""

    seconds: float
    """Wall-clock limit of one completion."""
    batch_seconds: float
    """Wall-clock limit of one process's completions of a step; what is left then counts as timed out."""
    workers: int
    """Processes that score side by side."""
    library: ClassVar[str]
    """What the worker imports, and the extra that installs it."""
    extra: ClassVar[str]
    early = True

    def __post_init__(self) -> None:
        require_number(self, "seconds", low=0.01)
        require_number(self, "batch_seconds", low=0.01)
        require(self.workers >= 1, self, "workers", "must be at least 1")
        if importlib.util.find_spec(self.library) is None:
            raise RecipeError(
                f"{type(self).__name__}: the package {self.library} is not installed. "
                f"Install it with: pip install 'lit-group-rl[{self.extra}]'"
            )
        object.__setattr__(self, "_workers", Workers(self.workers, "warm", self.library))

    @property
    def at_once(self) -> int:  # type: ignore[override]
        return self.workers

    @abstractmethod
    def request(self, sample: Sample) -> tuple[Any, ...] | float | None:
        """Name of the scorer and its arguments, or the score itself where nothing has to be computed."""

    def score(self, samples: Sequence[Sample]) -> list[float | Exception | None]:
        end = time.monotonic() + self.batch_seconds
        return self._workers.each(lambda sample: self._one(sample, end), samples)  # type: ignore[attr-defined]

    def _one(self, sample: Sample, end: float) -> float | Exception | None:
        request = self.request(sample)
        if not isinstance(request, tuple):
            return request
        left = end - time.monotonic()
        if left <= 0:
            return ScorerTimeout(f"the limit batch_seconds={self.batch_seconds:g} was used up")
        try:
            value = self._workers.call(*request, seconds=min(self.seconds, left))  # type: ignore[attr-defined]
        except (ScorerTimeout, ScorerError) as error:
            return error.with_traceback(None)  # the report is about the scorer, not about the waiting for it
        # a scorer that gives NaN for junk must not have it taken for an abstention
        return value if value is None or math.isfinite(value) else 0.0
