"""Real runs of the command in sessions of their own, to be stopped and killed."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICK = ["grpo", "--data.prompts_per_step=8", "--data.heldout_size=32", "--trainer.accelerator=cpu"]


class Run:
    """``lit-group-rl fit`` under way; whatever is left of it is killed at the end of the block."""

    def __init__(self, *options: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lit_group_rl", "fit", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | (env or {}),
            start_new_session=True,
        )
        self.output = ""

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.process.stdout.close()

    def read_until(self, what: str) -> None:
        """Wait until a line holds ``what``."""
        for line in self.process.stdout:
            self.output += line
            if what in line:
                return
        raise AssertionError(f"{what!r} never came:\n{self.output[-3000:]}")

    def end(self, seconds: float = 120) -> int:
        """Wait for the end; the exit code."""
        out, _ = self.process.communicate(timeout=seconds)
        self.output += out or ""
        return self.process.returncode

    def kill(self) -> None:
        """SIGKILL the whole session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def left(self) -> list[int]:
        """Processes of the session that are still there."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, session = (entry / "stat").read_text().rpartition(")")[2].split()[0::3][:2]
                except OSError:
                    continue
                if int(session) == self.process.pid and state != "Z":
                    found.append(int(entry.name))
        return found


def rows(folder: Path) -> dict[int, dict[str, str]]:
    """Logged numbers by RL step, without what is each run's own."""
    with (folder / "metrics.csv").open() as lines:
        kept = [{k: v for k, v in r.items() if not k.startswith(("time/", "perf/"))} for r in csv.DictReader(lines)]
    return {int(r["step"]): r for r in kept}


def wait_for(path: Path, seconds: float = 60) -> None:
    """Until a file is there."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.02)
