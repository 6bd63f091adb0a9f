"""A run that stands still says where, and leaves."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lit_group_rl.callbacks.watchdog import HUNG, Watchdog
from lit_group_rl.pulse import PULSE

ROOT = Path(__file__).parents[2]


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = "import time\nfrom lit_group_rl.callbacks.watchdog import Watchdog\nfrom lit_group_rl.pulse import PULSE\n"
    return subprocess.run(
        [sys.executable, "-c", code + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_a_hung_process_prints_stage_work_and_stack_and_leaves():
    ended = run("""
        def stuck_in_a_reward():
            time.sleep(100)
        Watchdog(seconds=0.4, leave_after=2.0).on_train_start(None, None)
        PULSE.at("reward", "exact")
        stuck_in_a_reward()
    """)
    assert ended.returncode == HUNG
    assert "nothing moved for" in ended.stderr
    assert "stage reward (exact)" in ended.stderr
    assert "in stuck_in_a_reward" in ended.stderr


def test_a_process_that_moves_is_left_alone():
    ended = run("""
        dog = Watchdog(seconds=1.5, leave_after=2.0)  # a busy machine may well hold a process for half a second
        dog.on_train_start(None, None)
        for _ in range(30):
            time.sleep(0.1)
            PULSE.beat()
        dog.teardown(None, None, "fit")
        time.sleep(2.5)
    """)
    assert ended.returncode == 0
    assert ended.stderr == ""


def test_the_pulse_knows_the_present_work():
    before = time.monotonic()
    PULSE.at("update", "RL step 3")
    assert (PULSE.stage, PULSE.what) == ("update", "RL step 3")
    assert PULSE.moved >= before


@pytest.mark.parametrize(("seconds", "leave_after"), [(0.0, 1.0), (5.0, 1.0)])
def test_limits_that_make_no_sense_are_refused(seconds, leave_after):
    with pytest.raises(ValueError, match="leave_after no less"):
        Watchdog(seconds, leave_after)
