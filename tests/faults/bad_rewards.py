"""Runs whose reward fails on 3.1 % of the completions, beside runs with the same reward in order.

    python -m tests.faults.bad_rewards [--steps 100] [--seeds 1 2] [--seconds 0.25] [--workers 4]

Prints one line of JSON per run and one that compares; exit code 1 where a count is wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from lit_group_rl.callbacks.base import RunCallback
from tests.faults import wild

SOAKED = (20, 60, 100)
"""RL steps at which memory and open files are noted."""


class Watch(RunCallback):
    """Counts the completions by what their reward did, and notes memory and open files."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.kinds: Counter[str] = Counter()
        self.soak: dict[int, list[float]] = {}

    def on_metrics(self, trainer: Any, module: Any, step: int, metrics: dict[str, float]) -> None:
        if step:
            self.kinds.update(wild.kind(s.prompt, s.completion) for s in module.last_batch.samples)
        if step in SOAKED:
            self.soak[step] = [resident_mb(), len(os.listdir("/proc/self/fd"))]

    def on_train_end(self, trainer: Any, module: Any) -> None:
        from lit_group_rl.evaluation import HeldOut

        samples = HeldOut().greedy(module.policy, module.sampler, module.data.heldout_share()).samples
        accuracy = statistics.fmean(s.completion == s.answer for s in samples)
        self.path.write_text(json.dumps({"kinds": self.kinds, "accuracy": accuracy, "soak": self.soak}))


def resident_mb() -> float:
    """Memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def one(root: Path, reward: str, seed: int, steps: int, seconds: float, *more: str) -> dict[str, Any]:
    """A run; what was counted, measured and logged."""
    from lit_group_rl.cli.main import main as command

    told = root / f"{reward}_{seed}.json"
    callbacks = [{"class_path": "tests.faults.bad_rewards.Watch", "init_args": {"path": str(told)}}]
    options = [
        f"--steps={steps}",
        f"--seed={seed}",
        f"--run_root={root}",
        f"--run_name={reward}_{seed}",
        "--model.heldout=null",
        "--model.rewards.exact=FunctionReward",
        f"--model.rewards.exact.fn=tests.faults.wild.{reward}",
        f"--model.rewards.exact.seconds={seconds}",
        "--trainer.accelerator=cpu",
        f"--trainer.callbacks={json.dumps(callbacks)}",
    ]
    began = time.monotonic()
    code = command(["fit", "grpo", *options, *more])
    took = time.monotonic() - began
    with (root / f"{reward}_{seed}" / "0001" / "metrics.csv").open() as lines:
        rows = [r for r in csv.DictReader(lines) if r["reward/mean"]]
    return json.loads(told.read_text()) | {
        "reward": reward,
        "seed": seed,
        "code": code,
        "seconds": round(took, 1),
        "step_seconds": round(statistics.median(float(r["time/step"]) for r in rows), 3),
        "reward_seconds": round(statistics.fmean(float(r["time/reward"]) for r in rows), 3),
        "logged": {k: sum(float(r[f"reward/{k}_frac"]) for r in rows) for k in ("error", "timeout", "abstain")},
        "per_step": float(rows[-1]["progress/completions"]) / len(rows),
    }


def wrong_counts(run: dict[str, Any]) -> list[str]:
    """What the run logged otherwise than its completions tell."""
    kinds = Counter(run["kinds"])
    due = {
        "error": kinds["raise"],
        "timeout": kinds["hang"],
        "abstain": kinds["raise"] + kinds["nan"] + kinds["inf"],
    }
    counted = {k: run["logged"][k] * run["per_step"] for k in due}
    return [f"{k}: logged {counted[k]:.3f}, due {due[k]}" for k in due if abs(counted[k] - due[k]) > 1e-6]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.25, help="limit of a call")
    parser.add_argument("--workers", type=int, default=0, help="score one by one in so many processes")
    options = parser.parse_args()
    more = [f"--model.rewards.exact.{o}" for o in ("one_by_one=true", f"workers={options.workers}") if options.workers]
    runs = []
    with tempfile.TemporaryDirectory() as root:
        for seed in options.seeds:
            for reward in ("right", "wild"):
                runs.append(one(Path(root), reward, seed, options.steps, options.seconds, *more))
                print(json.dumps(runs[-1]), flush=True)
    sound, bad = ([r for r in runs if r["reward"] == name] for name in ("right", "wild"))
    wrong = [w for r in bad for w in wrong_counts(r)]
    slower = [b["seconds"] - s["seconds"] for s, b in zip(sound, bad, strict=True)]
    hangs = sum(r["kinds"].get("hang", 0) for r in bad)
    print(
        json.dumps(
            {
                "wrong_counts": wrong,
                "accuracy": {r["reward"]: [x["accuracy"] for x in runs if x["reward"] == r["reward"]] for r in runs},
                "slower_by": [round(b["seconds"] / s["seconds"] - 1, 3) for s, b in zip(sound, bad, strict=True)],
                "added_seconds_per_hang": round(sum(slower) / max(1, hangs), 2),
            }
        )
    )
    return int(bool(wrong) or any(r["code"] for r in runs))


if __name__ == "__main__":
    sys.exit(main())
