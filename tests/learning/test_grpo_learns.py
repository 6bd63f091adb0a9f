"""The main promise: the default recipe learns in front of you, offline, on a laptop CPU, whatever the seed."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

SEEDS = (1, 2, 3, 4, 5)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_grpo_goes_from_at_most_40_to_at_least_85_percent_in_five_minutes(tmp_path):
    """Two runs at a time, one thread each, so that two cores are used as one run would use them."""

    def run(seed):
        command = [
            sys.executable,
            "-m",
            "lit_group_rl",
            "fit",
            "grpo",
            f"--seed={seed}",
            "--run_root",
            str(tmp_path / str(seed)),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=1200)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads((tmp_path / str(seed) / "grpo" / "0001" / "summary.json").read_text()), done.stdout

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, SEEDS))
    for seed, (summary, said) in zip(SEEDS, results, strict=True):
        assert summary["recipe"] == "grpo"
        assert summary["seed"] == seed
        assert summary["completions"] == summary["rl_steps"] * 32 * 8
        assert summary["finite"]
        assert summary["seconds"] <= 300, summary
        assert summary["heldout_start"] <= 0.40, summary
        assert summary["heldout_end"] >= 0.85, summary
        assert "held-out" in said
        assert (tmp_path / str(seed) / "grpo" / "0001" / "learning_curve.png").stat().st_size > 5000
