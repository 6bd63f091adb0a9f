"""Two processes: one fails, one is asked to stop, one hangs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from lit_group_rl import checkpoint
from lit_group_rl.callbacks.watchdog import HUNG
from lit_group_rl.cli.export import export
from tests.faults.runs import QUICK, ROOT, Run, rows, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TWO = ["--trainer.devices=2", "--steps=4", "--model.heldout.every=2"]
PATH = {"PYTHONPATH": str(ROOT)}


def callback(name: str, **options: object) -> str:
    return "--trainer.callbacks=" + json.dumps([{"class_path": f"tests.faults.stages.{name}", "init_args": options}])


@pytest.mark.parametrize(("strategy", "stage"), [("ddp", "update"), ("fsdp2", "scoring")])
def test_the_error_of_the_process_that_failed_is_the_last_thing_said(strategy: str, stage: str, tmp_path: Path) -> None:
    fails = callback("FailIn", stage=stage, step=3, rank=1)
    with Run(*QUICK, *TWO, f"--trainer.strategy={strategy}", f"--run_root={tmp_path}", fails, env=PATH) as run:
        assert run.end(seconds=200) != 0
        last = run.output.strip().splitlines()[-1]
        assert "process 1 failed: ValueError: no luck" in last, run.output[-3000:]
        time.sleep(2)
        assert run.left() == []
    kept = checkpoint.newest(tmp_path / "grpo" / "0001")
    if stage == "scoring":  # the weights were those of the last step, and it is kept
        assert kept.state["rl_step"] == 2
    else:
        assert kept is None or kept.state["rl_step"] == 2


def test_one_signal_stops_both_processes_and_the_run_goes_on_on_one(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    holds = callback("HoldIn", stage="sampling", step=3, marker=str(marker), seconds=15.0)
    with Run(*QUICK, *TWO, "--trainer.strategy=fsdp2", f"--run_root={tmp_path}", holds, env=PATH) as run:
        wait_for(marker, seconds=120)
        os.kill(run.process.pid, signal.SIGTERM)  # the first process alone; the other one only hears of it
        assert run.end(seconds=100) == 143, run.output[-3000:]
        time.sleep(2)
        assert run.left() == []
    folder = tmp_path / "grpo" / "0001"
    kept = checkpoint.newest(folder)
    assert kept.state["rl_step"] == 2
    out = tmp_path / "exported"
    assert export([str(folder), str(out), "--checkpoint=last"]) == 0
    exported = AutoModelForCausalLM.from_pretrained(out).state_dict()
    for name, value in exported.items():  # a sharded run leaves whole weights
        assert torch.equal(value, kept.weights[f"policy.model.{name}"]), name
    with Run(*QUICK, "--steps=4", f"--run_root={tmp_path}", f"--resume={folder}") as run:
        assert run.end() == 0, run.output
    assert sorted(rows(folder)) == [0, 1, 2, 3, 4]


def test_a_process_that_hangs_is_named_with_its_stack_and_the_run_ends(tmp_path: Path) -> None:
    options = {"stage": "scoring", "step": 2, "marker": str(tmp_path / "marker"), "seconds": 300.0}
    callbacks = [
        {"class_path": "tests.faults.stages.HoldIn", "init_args": options},
        {"class_path": "lit_group_rl.callbacks.watchdog.Watchdog", "init_args": {"seconds": 4, "leave_after": 12}},
    ]
    given = f"--trainer.callbacks={json.dumps(callbacks)}"
    with Run(*QUICK, *TWO, "--trainer.strategy=ddp", f"--run_root={tmp_path}", given, env=PATH) as run:
        assert run.end(seconds=200) in (HUNG, -signal.SIGKILL), run.output
        assert "in stage reward" in run.output
        assert "in held" in run.output  # the function that holds it, in its stack
        time.sleep(2)
        assert run.left() == []
