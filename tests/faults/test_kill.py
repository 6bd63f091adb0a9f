"""The short form of ``make kill``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.faults.runs import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_runs_go_on_as_if_unbroken() -> None:
    command = [sys.executable, "-m", "tests.faults.kill", "--kills", "6", "--during-saves", "0.5"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=580)
    assert ended.returncode == 0, ended.stderr[-3000:]
    tally = json.loads(ended.stdout.splitlines()[-1])
    assert tally["kills"] == 6
    assert tally["while_saving"] >= 1
    assert tally["unreadable"] == 0
    assert tally["runs_identical"] == tally["runs_finished"] >= 1
