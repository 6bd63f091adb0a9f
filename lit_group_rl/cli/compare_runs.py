"""The matrix of runs, recipes times seeds: each a ``fit`` in a process of its own, finished ones left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.compare_arms import METRICS, Arm, is_finished, steps_for
from lit_group_rl.cli.refusal import Refusal, shown
from lit_group_rl.cli.show import differences

ASKED, LOG = "asked.json", "log.txt"
STOPPED = (130, 143)
"""Exit codes of a run that was told to stop."""
BUDGET = "lit_group_rl.callbacks.CompletionBudget"


class Process(Protocol):
    """What is needed of a running process."""

    def poll(self) -> int | None:
        """Exit code, None while it runs."""

    def terminate(self) -> None:
        """Tell it to save and stop."""

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, once it has one."""


@dataclass(frozen=True)
class Job:
    """One run of the matrix."""

    arm: Arm
    seed: int
    root: Path
    """Folder of all runs."""
    completions: int
    """The budget."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.arm.name.replace('+', '_')}-seed{self.seed}"

    @property
    def home(self) -> Path:
        """Where its numbered run folder, its log and what was asked of it stand."""
        return self.root / self.name

    @property
    def steps(self) -> int:
        """RL steps at most."""
        return steps_for(self.arm, self.completions)

    def folder(self) -> Path | None:
        """The finished run, or else the newest that was begun."""
        begun = [p for p in run_folder.runs(self.root, self.name) if (p / METRICS).is_file()]
        ended = [p for p in begun if is_finished(p, self.steps, self.completions)]
        found = ended or begun
        return found[-1] if found else None

    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        folder = self.folder()
        return folder is not None and is_finished(folder, self.steps, self.completions)

    def done(self) -> float:
        """Completions so far."""
        from lit_group_rl.callbacks.metrics_file import read_metrics
        from lit_group_rl.cli.compare_statistics import COMPLETIONS

        folder = self.folder()
        rows = read_metrics(folder / METRICS) if folder else {}
        return min(max((row.get(COMPLETIONS, 0.0) for row in rows.values()), default=0.0), self.completions)

    def command(self) -> list[str]:
        """The words after ``lit-group-rl``; resuming where there is a checkpoint."""
        return [
            "fit",
            *self.arm.words,
            f"--steps={self.steps}",
            f"--seed={self.seed}",
            f"--run_root={self.root}",
            f"--run_name={self.name}",
            f"--trainer.callbacks+={BUDGET}",
            f"--trainer.callbacks.completions={self.completions}",
            "--resume=auto",
        ]

    def asked(self) -> dict[str, Any]:
        """What decides the result."""
        return {"completions": self.completions, "seed": self.seed} | self.arm.config | {"steps": self.steps}

    def claim(self) -> None:
        """Refuse a folder whose run was made from other settings; note the settings of a new one."""
        path = self.home / ASKED
        # through JSON, as what is read back went through it
        asked = json.loads(json.dumps(self.asked(), default=str))
        if path.is_file():
            rows = differences(json.loads(path.read_text(encoding="utf-8")), asked)
            if rows:
                changed = ", ".join(f"{key} {old} -> {new}" for key, old, new in rows[:3])
                more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
                fix = "Choose another folder with --out, or delete that one."
                raise Refusal("out", f"{shown(self.home)} was made with other settings: {changed}{more}", fix)
            return
        self.home.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asked, indent=1) + "\n", encoding="utf-8")

    def reason(self) -> str:
        """Why it failed: what its log says last."""
        try:
            lines = (self.home / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "no log"
        said = [line for line in lines if line.startswith(("error: ", "stopped: "))]
        return (said or [line for line in lines if line.strip()] or ["no output"])[-1].strip()


def start(job: Job, at_once: int) -> Process:
    """Begin or continue a run; what it prints goes into its log."""
    environment = {k: v for k, v in os.environ.items() if k != run_folder.ENVIRONMENT}
    if at_once > 1:  # else each would take all cores
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // at_once)))
    with open(job.home / LOG, "w", encoding="utf-8") as log:
        # a session of its own: Ctrl-C reaches it once, from here
        return subprocess.Popen(
            [sys.executable, "-m", "lit_group_rl", *job.command()],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )


Starter = Callable[[Job, int], Process]
Teller = Callable[["Matrix", "Job | None"], None]


class Matrix:
    """Runs what is missing, one seed of every recipe before the next, so that an early stop leaves whole pairs."""

    def __init__(self, jobs: Sequence[Job], at_once: int = 1, starter: Starter = start, pause: float = 0.5) -> None:
        """``pause``: seconds between looks at the running ones."""
        self.jobs, self.at_once, self.starter, self.pause = jobs, at_once, starter, pause
        for job in jobs:
            job.claim()
        self.waiting = [job for job in jobs if not job.finished()]
        self.skipped = len(jobs) - len(self.waiting)
        self.running: dict[Job, Process] = {}
        self.failed: dict[Job, str] = {}
        self._began = time.monotonic()
        self._left_at_start = sum(job.completions - job.done() for job in self.waiting)

    @property
    def ended(self) -> int:
        """Runs that are finished or failed."""
        return len(self.jobs) - len(self.waiting) - len(self.running)

    def seconds_left(self) -> float | None:
        """By the completions made since the start; None while there is nothing to judge by."""
        left = sum(job.completions - job.done() for job in [*self.waiting, *self.running])
        made = self._left_at_start - left - sum(job.completions - job.done() for job in self.failed)
        seconds = time.monotonic() - self._began
        return seconds / made * left if made > 0 and left > 0 else None

    def run(self, tell: Teller) -> None:
        """Until all have ended; ``tell`` is called with each that ends, and with None in between.

        KeyboardInterrupt and SIGTERM stop the running ones, which save, and are then passed on.
        """
        with _terminated_like_interrupted():
            try:
                while self.waiting or self.running:
                    while self.waiting and len(self.running) < self.at_once:
                        job = self.waiting.pop(0)
                        self.running[job] = self.starter(job, self.at_once)
                    for job, process in list(self.running.items()):
                        code = process.poll()
                        if code is not None:
                            del self.running[job]
                            self._judge(job, code)
                            tell(self, job)
                    tell(self, None)
                    time.sleep(self.pause if self.running else 0.0)
            except BaseException:
                self._stop()
                raise

    def _judge(self, job: Job, code: int) -> None:
        if job.finished():
            return
        why = "it was stopped; the same command goes on with it" if code in STOPPED else job.reason()
        self.failed[job] = why if code else f"it ended before its budget ({why})"

    def _stop(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM as an exception with its exit code, for as long as runs are to be stopped with this process."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # only the main thread hears signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
