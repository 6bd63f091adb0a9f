"""Run the program that a completion contains, and compare what it prints."""

from __future__ import annotations

import contextlib
import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from lit_group_rl.rewards.base import Outcome, Reward, ScorerTimeout
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import RecipeError, Sample

SCRIPT = Path(__file__).with_name("_program.py")
NAMESPACES = ("setpriv", "--pdeathsig", "KILL", "unshare", "--user", "--map-root-user", "--net", "--mount", "--pid",
              "--ipc", "--uts", "--fork", "--kill-child=KILL")  # fmt: skip
MEBI = 1 << 20
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def extract_code(text: str) -> str:
    """The last fenced block of a completion; all of it if there is none."""
    found = _FENCE.findall(text)
    return found[-1] if found else text


@dataclass(frozen=True)
class Trial:
    """One run of a program: what it reads, a call whose value it shall print last, what it has to print."""

    input: str
    call: str | None
    output: str

    def passed(self, code: int | None, printed: str) -> bool:
        """Whether exit code and output are right; white space at line ends and around the whole does not count."""
        lines = [line.rstrip() for line in printed.strip().splitlines()]
        if self.call is not None:
            lines = lines[-1:]
        return code == 0 and lines == [line.rstrip() for line in self.output.strip().splitlines()]


@dataclass(frozen=True)
class CodeExecution(Reward):
    """Share of the sample's tests that the completion's Python program passes (Linux; standard library only).

    The program is the last fenced block, or the whole completion.  The column of tests holds a list of

        {input: "3 4", output: "7"}            the program reads the input and prints the output
        {call: "add(3, 4)", output: "7"}       the repr of the call's value is the output

    Outputs never enter the process of the program, so it cannot read them or declare itself right.  A program that
    passes a limit or ends with an error fails that test, and one that runs too long fails its later tests too.

    It runs what a model writes, so it does nothing until a backend is chosen.  ``namespace`` takes network, write
    access (but for a private folder in memory), other processes and all rights away; the program can still read the
    files that you can read, and use processor time up to its limit.  ``unsafe_local`` sets limits of time, memory,
    file size and processes and clears the environment.  Limits are no sandbox: the program can read and delete your
    files and use the network, and as root it can start processes that outlive it.
    """

    backend: Literal["namespace", "unsafe_local"] | None = None
    """What confines the programs; there is no default."""
    i_accept_the_risk: bool = False
    """Must be true for ``unsafe_local``."""
    weight: Number = 1.0
    """Weight in the total."""
    solved_at: float = 1.0
    """From this score on a completion counts as solved; 1 is all tests."""
    tests: str = "tests"
    """Column of the data with the tests; a sample without any is not scored."""
    seconds: float = 5.0
    """Wall-clock limit of one run, and in whole seconds of its processor time."""
    batch_seconds: float = 60.0
    """Wall-clock limit of one process's completions of a step; what is left then counts as timed out."""
    memory_mb: int = 512
    """Address space of a program in MiB."""
    file_mb: int = 4
    """Largest file that a program writes, its output included, in MiB; a private folder holds four times as much."""
    workers: int = 2
    """Programs that run at the same time."""
    on_timeout: Outcome = "minimum"
    """A completion whose turn did not come within ``batch_seconds`` scores 0, is not scored, or ends the run."""

    range = (0.0, 1.0)
    early = True

    def __post_init__(self) -> None:
        for option in ("seconds", "batch_seconds"):
            require_number(self, option, low=0.01)
        for option, low in (("memory_mb", 64), ("file_mb", 1), ("workers", 1)):
            require(getattr(self, option) >= low, self, option, f"must be at least {low}")
        if self.backend is None:
            raise RecipeError(
                "CodeExecution.backend: it runs programs that a model wrote, so a backend must be chosen. "
                "Set backend: namespace, or unsafe_local in a machine that may be lost"
            )
        if self.backend == "unsafe_local" and not self.i_accept_the_risk:
            raise RecipeError(
                "CodeExecution.backend: unsafe_local lets programs that a model wrote read and delete your files and "
                "use the network. Set i_accept_the_risk: true, or backend: namespace"
            )
        if sys.platform != "linux":
            raise RecipeError(
                f"CodeExecution: {sys.platform} does not hold a program to its limits. Use Linux, or another reward"
            )
        missing = [tool for tool in ("setpriv", "unshare") if self.backend == "namespace" and not shutil.which(tool)]
        reason = f"{' and '.join(missing)} not found" if missing else self._try_out()
        if reason:
            raise RecipeError(
                f"CodeExecution.backend: this machine does not allow {self.backend}: {reason}. "
                "Install util-linux and allow unprivileged user namespaces, or run it in a machine that may be lost, "
                "with backend: unsafe_local"
            )

    def score(self, samples: Sequence[Sample]) -> list[float | Exception | None]:
        end = time.monotonic() + self.batch_seconds
        tests = [self._tests_of(s) for s in samples]
        passed, left, hung = [0] * len(samples), [len(t) for t in tests], set()
        waiting = ((row, test) for row, own in enumerate(tests) for test in own if row not in hung)
        running: dict[int, tuple[int, Trial, _Run]] = {}
        try:
            with selectors.DefaultSelector() as selector:
                while time.monotonic() < end:
                    while len(running) < self.workers and (task := next(waiting, None)):
                        run = self._start(extract_code(samples[task[0]].completion), task[1])
                        running[run.handle] = (*task, run)
                        selector.register(run.handle, selectors.EVENT_READ)
                    if not running:
                        break
                    until = min(end, *(run.end for _, _, run in running.values()))
                    ready = {key.fd for key, _ in selector.select(max(0.0, until - time.monotonic()))}
                    late = {handle for handle, (_, _, run) in running.items() if run.end <= time.monotonic()}
                    for handle in ready | late:
                        row, test, run = running.pop(handle)
                        selector.unregister(handle)
                        passed[row] += test.passed(*run.finish())
                        left[row] -= 1
                        if handle not in ready:
                            hung.add(row)
        finally:
            for _, _, run in running.values():
                run.finish()
        return [self._scored(passed[i], len(t), left[i], i in hung) for i, t in enumerate(tests)]

    def _scored(self, passed: int, tests: int, left: int, hung: bool) -> float | Exception | None:
        if left and not hung:
            return ScorerTimeout(f"the limit batch_seconds={self.batch_seconds:g} was used up")
        return passed / tests if tests else None

    def _tests_of(self, sample: Sample) -> list[Trial]:
        if self.tests not in sample.fields:
            raise RecipeError(
                f"model.rewards: CodeExecution needs the column {self.tests!r} of the data, which has "
                f"{', '.join(sample.fields) or 'no such columns'}. Add it, or set the option tests"
            )
        return list(_tests(sample.fields[self.tests] or [], self.tests))

    def _start(self, code: str, test: Trial) -> _Run:
        asked = "" if test.call is None else f"\n\nprint(repr({test.call}))\n"
        limits = [math.ceil(self.seconds), self.memory_mb * MEBI, self.file_mb * MEBI]
        outer = NAMESPACES if self.backend == "namespace" else ()
        return _Run(code + asked, test.input, (*outer, sys.executable, "-I", "-S", str(SCRIPT), str(self.backend)),
                    [str(n) for n in limits], self.seconds)  # fmt: skip

    def _try_out(self) -> str:
        """Why a program that does nothing wrong fails; empty if it does not."""
        run, test = self._start("print(6 * 7)", Trial("", None, "42")), Trial("", None, "42")
        with selectors.DefaultSelector() as selector:
            selector.register(run.handle, selectors.EVENT_READ)
            selector.select(max(self.seconds, 30.0))
        run.errors.seek(0)
        why = run.errors.read().decode(errors="replace").strip()
        return "" if test.passed(*run.finish()) else why.rpartition("\n")[2] or "a program does not start"


class _Run:
    """A program on its way, with all that it started."""

    def __init__(self, source: str, text: str, command: Sequence[str], limits: Sequence[str], seconds: float) -> None:
        self.folder = tempfile.mkdtemp(prefix="program-")
        Path(self.folder, "program.py").write_text(source, encoding="utf-8", errors="replace")
        # files, because a program that prints for ever would fill memory through a pipe; their size has a limit
        self.printed, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write(text.encode(errors="replace"))
            given.seek(0)
            self.process = subprocess.Popen(
                [*command, self.folder, *limits],
                stdin=given,
                stdout=self.printed,
                stderr=self.errors,
                cwd=self.folder,
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": self.folder, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        self.handle = os.pidfd_open(self.process.pid)
        self.end = time.monotonic() + seconds

    def finish(self) -> tuple[int | None, str]:
        """Kill what is left of it; exit code and output."""
        # before waiting: as long as the leader is not waited for, its number belongs to this group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        os.close(self.handle)
        printed = _all(self.printed)
        self.errors.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code, printed


def _all(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="replace")


def _tests(given: Any, column: str) -> Iterator[Trial]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        given = [given]
    for i, test in enumerate(given):
        known = isinstance(test, dict) and set(test) <= {"input", "call", "output"}
        if not known or not isinstance(test.get("output"), str):
            raise RecipeError(
                f"model.rewards: entry {i} of the column {column!r} is no test: {str(test)[:80]!r}. "
                'Write {"input": "3 4", "output": "7"} or {"call": "add(3, 4)", "output": "7"}'
            )
        yield Trial(test.get("input") or "", test.get("call"), test["output"])
