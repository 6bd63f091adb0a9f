"""SIGKILL at random moments, some while a checkpoint is being written; what is left must go on as if unbroken.

    python -m tests.faults.kill [--kills 200] [--during-saves 0.25] [--seed 0] [--politely]

With --politely it is SIGTERM: the run ends by itself, and no finished RL step may be lost.

Each life of the run is a fork of a process that has imported everything, so that most of its time is training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lit_group_rl import checkpoint
from lit_group_rl.cli import run, run_folder
from tests.faults.runs import QUICK, rows

STEPS, EVERY = 16, 2
GIVE_UP = 120.0


@dataclass
class Tally:
    """What the kills did."""

    kills: int = 0
    while_saving: int = 0
    unreadable: int = 0
    runs_finished: int = 0
    runs_identical: int = 0
    most_steps_lost: int = 0
    slowest_end: float = 0.0
    """Seconds from the signal to the end."""


def life(root: Path, name: str) -> int:
    """Train in a child process, from the newest checkpoint if there is one; its id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.environ[run_folder.ENVIRONMENT] = ""
    folder = root / name / "0001"
    saving = {"run_dir": str(folder), "every": EVERY}
    callbacks = [{"class_path": "lit_group_rl.callbacks.checkpoint.CheckpointCallback", "init_args": saving}]
    if folder.exists() and not run_folder.has_checkpoint(folder):
        shutil.rmtree(folder)  # killed before its first checkpoint: nothing to go on from
    code = 1
    try:
        options = [
            f"--steps={STEPS}",
            f"--run_root={root}",
            f"--run_name={name}",
            "--resume=auto",
            "--model.heldout.every=5",
        ]
        code = run.fit([*QUICK, *options, f"--trainer.callbacks={json.dumps(callbacks)}"])
    finally:
        os._exit(code)


def ended(pid: int) -> int | None:
    """Exit code, or None while it runs."""
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def saving(folder: Path) -> bool:
    """Whether a checkpoint is being written right now."""
    try:
        return any(name.startswith(".writing_") for name in os.listdir(folder / "checkpoints"))
    except OSError:
        return False


def interrupt(
    pid: int, folder: Path, rng: random.Random, in_save: float, within: float, signum: int, tally: Tally
) -> bool:
    """Send the signal at a random moment; whether the run went on until then."""
    targeted = rng.random() < in_save
    moment = time.monotonic() + (GIVE_UP if targeted else rng.uniform(0.0, within))
    while time.monotonic() < moment:
        if (code := ended(pid)) is not None:
            assert code == 0, f"a life ended with {code}"
            return False
        if targeted and saving(folder):
            time.sleep(rng.uniform(0.0, 0.02))
            break
        time.sleep(0.0005 if targeted else 0.01)
    was_saving = saving(folder)
    began = time.monotonic()
    os.kill(pid, signum)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (-signum, 128 + signum, 0), f"a life ended with {code}"
    if signum == signal.SIGTERM and code != 128 + signum:
        return code != 0  # before training began the system ends it; or the signal came in the last step
    tally.slowest_end = max(tally.slowest_end, round(time.monotonic() - began, 2))
    tally.kills, tally.while_saving = tally.kills + 1, tally.while_saving + was_saving
    return True


def examine(folder: Path, tally: Tally, before: int) -> int:
    """After a kill: what can be read and what is lost; the step of the newest checkpoint."""
    found = checkpoint.newest(folder)
    if found is None:
        if before or run_folder.has_checkpoint(folder):
            tally.unreadable += 1
        return 0
    step = int(found.state["rl_step"])
    logged = max(rows(folder), default=0) if (folder / "metrics.csv").exists() else 0
    tally.most_steps_lost = max(tally.most_steps_lost, logged - step)
    if step < before:
        tally.unreadable += 1
    return step


def same(one: Path, two: Path) -> bool:
    """Every logged number and every weight."""
    files = [f / "checkpoints" / f"step_{STEPS:06d}" / checkpoint.WEIGHTS for f in (one, two)]
    return rows(one) == rows(two) and files[0].read_bytes() == files[1].read_bytes()


def harness(kills: int, in_save: float, seed: int, root: Path, signum: int) -> Tally:
    """Runs that are killed over and over until there were enough kills, then finished."""
    import lit_group_rl.cli.lightning_cli  # noqa: F401  the children have it

    rng, tally = random.Random(seed), Tally()
    began = time.monotonic()
    assert os.waitstatus_to_exitcode(os.waitpid(life(root, "unbroken"), 0)[1]) == 0
    whole = time.monotonic() - began
    number = 0
    while tally.kills < kills:
        number += 1
        folder, step = root / f"killed{number}" / "0001", 0
        while True:
            pid = life(root, f"killed{number}")
            if tally.kills >= kills:
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                break
            if not interrupt(pid, folder, rng, in_save, whole, signum, tally):
                break
            step = examine(folder, tally, step)
        tally.runs_finished += 1
        tally.runs_identical += same(root / "unbroken" / "0001", folder)
        print(json.dumps(asdict(tally)), file=sys.stderr, flush=True)
    return tally


def good(tally: Tally, politely: bool) -> bool:
    """What is promised."""
    whole = tally.unreadable == 0 and tally.runs_identical == tally.runs_finished
    return whole and tally.most_steps_lost <= (0 if politely else EVERY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--during-saves", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--politely", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        signum = signal.SIGTERM if options.politely else signal.SIGKILL
        tally = harness(options.kills, options.during_saves, options.seed, Path(root), signum)
    print(json.dumps(asdict(tally)))
    return 0 if good(tally, options.politely) else 1


if __name__ == "__main__":
    sys.exit(main())
