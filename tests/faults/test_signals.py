"""Asked to stop in any stage, a run leaves within seconds, with a checkpoint from which it goes on as if unbroken."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from lit_group_rl import checkpoint
from tests.faults.runs import QUICK, ROOT, Run, rows, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("signals")]

STAGES = ("sampling", "scoring", "judging", "update", "evaluation", "saving")
EVERY = ["--model.heldout.every=2", "--steps=4"]
LIMIT = float(os.environ.get("STOP_SECONDS", "5"))
"""The promise for a machine that does nothing else; a shared one may set more."""
PATH = {"PYTHONPATH": str(ROOT)}


def hold(stage: str, marker: Path, seconds: float) -> str:
    options = {"stage": stage, "step": 2, "marker": str(marker), "seconds": seconds}
    return "--trainer.callbacks=" + json.dumps([{"class_path": "tests.faults.stages.HoldIn", "init_args": options}])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unbroken")
    with Run(*QUICK, *EVERY, f"--run_root={root}") as run:
        assert run.end() == 0, run.output
    return root / "grpo" / "0001"


@pytest.mark.parametrize(
    ("stage", "signum"),
    # both arrive at the same flag: Ctrl-C is tried before, in and after the update
    [*((stage, signal.SIGTERM) for stage in STAGES), *((s, signal.SIGINT) for s in ("sampling", "update", "saving"))],
)
def test_a_run_stops_in_any_stage(stage: str, signum: int, tmp_path: Path, unbroken: Path) -> None:
    marker = tmp_path / "marker"
    # what cannot be broken off is made as long as it is in the default recipe
    seconds = 30.0 if stage in ("sampling", "scoring", "evaluation") else 0.5
    with Run(*QUICK, *EVERY, f"--run_root={tmp_path}", hold(stage, marker, seconds), env=PATH) as run:
        wait_for(marker)
        began = time.monotonic()
        os.kill(run.process.pid, signum)
        code = run.end(seconds=60)
        took = time.monotonic() - began
        assert code == 128 + signum, run.output
        assert took < LIMIT, f"{took:.1f} s\n{run.output}"
        time.sleep(0.5)
        assert run.left() == []
    folder = tmp_path / "grpo" / "0001"
    found = checkpoint.newest(folder)
    # an update under way is finished; anything before it is done again
    assert found.state["rl_step"] == (1 if stage in ("sampling", "scoring", "judging") else 2)
    if signum == signal.SIGINT:
        return  # what was kept is what SIGTERM keeps, from which the other cases go on
    with Run(*QUICK, *EVERY, f"--run_root={tmp_path}", f"--resume={folder}") as run:
        assert run.end() == 0, run.output
    assert rows(folder) == rows(unbroken)
    assert weights(folder) == weights(unbroken)


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "step_000004" / checkpoint.WEIGHTS).read_bytes()


def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with Run(*QUICK, *EVERY, f"--run_root={tmp_path}", hold("update", marker, 30.0), env=PATH) as run:
        wait_for(marker)
        os.kill(run.process.pid, signal.SIGTERM)
        time.sleep(1.0)
        began = time.monotonic()
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.end(seconds=20) == 143
        assert time.monotonic() - began < 1.0
        assert "once more: leave at once" in run.output
