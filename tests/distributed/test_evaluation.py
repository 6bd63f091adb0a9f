"""``validate`` and ``predict`` on two processes say what they say on one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TWO = ["--trainer.devices=2", "--trainer.strategy=ddp"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def command(folder: Path, *words: str) -> str:
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "lit_group_rl", *words, "--trainer.accelerator=cpu"]
    ended = subprocess.run(line, capture_output=True, text=True, cwd=folder, env=env, timeout=250)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_two_processes_evaluate_as_one(tmp_path: Path) -> None:
    # 15 held-out prompts: the shares differ
    command(tmp_path, "fit", "grpo", "scale/smoke", "--steps=1", "--data.heldout_size=15")
    alone, together = (command(tmp_path, "predict", "--resume=runs/grpo/0001", *how) for how in ([], TWO))
    rows, shared = ([json.loads(r) for r in out.splitlines() if r.startswith("{")] for out in (alone, together))
    assert len(rows) == len({row["prompt"] for row in rows}) == 15
    assert shared == rows
    numbers = [
        re.findall(r"eval/heldout/\w+\W+([\d.]+)", command(tmp_path, "validate", "--resume=runs/grpo/0001", *how))
        for how in ([], TWO)
    ]
    assert len(numbers[0]) == 4
    assert numbers[1] == numbers[0]
