"""``python -m lit_group_rl.cli.results``: train every recipe on the embedded policy, with a table in docs/results.md.

A run that is finished is not made again, so the command can be stopped and given anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import yaml

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compare_statistics import finite

BEGIN, END = "<!-- every recipe: begin (python -m lit_group_rl.cli.results) -->", "<!-- every recipe: end -->"
ACCURACY = "eval/heldout/accuracy"
INTERRUPTED = (130, 143)
"""Exit codes of a run that was told to stop."""


def embedded() -> list[str]:
    """The recipes that start from the embedded policy."""
    files = catalog.files("recipes")
    return [name for name, path in files.items() if yaml.safe_load(path.read_text())["model"]["policy"] == "TinyPolicy"]


def record_of(root: Path, recipe: str, seed: int, steps: int) -> Path:
    """Where the outcome of a run is kept."""
    return root / f"{recipe}-seed{seed}-steps{steps}.json"


def outcome(rows: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Start, end and whether every update was finite, of the numbers that a run logged by RL step."""
    evaluated = [step for step in sorted(rows) if ACCURACY in rows[step]]
    return {
        "start": rows[evaluated[0]][ACCURACY],
        "end": rows[evaluated[-1]][ACCURACY],
        "last_step": max(rows),
        "finite": finite(rows.values()),
    }


def train(root: str, recipe: str, seed: int, steps: int) -> dict[str, Any]:
    """One run in this process; its outcome is stored, or the reason why there is none."""
    from lit_group_rl.callbacks.metrics_file import read_metrics
    from lit_group_rl.cli import run, run_folder

    name = f"{recipe}-seed{seed}-steps{steps}"
    options = [f"--steps={steps}", f"--seed={seed}", f"--run_root={root}", f"--run_name={name}"]
    os.environ.pop(run_folder.ENVIRONMENT, None)
    record: dict[str, Any] = {"recipe": recipe, "seed": seed, "steps": steps}
    with open(Path(root, f"{name}.log"), "w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        began = time.process_time()
        try:
            code = run.fit([recipe, *options, "--trainer.accelerator=cpu"])
            if code in INTERRUPTED:
                raise KeyboardInterrupt
            record["error"] = f"exit code {code}" if code else None
            record["seconds_per_step"] = (time.process_time() - began) / steps
            record |= outcome(read_metrics(run_folder.runs(Path(root), name)[-1] / "metrics.csv"))
        except Exception as error:  # one recipe must not end the others
            traceback.print_exc()
            record["error"] = f"{type(error).__name__}: {error}"
    record_of(Path(root), recipe, seed, steps).write_text(json.dumps(record, indent=1) + "\n")
    return record


def load(root: Path, recipe: str, seed: int, steps: int) -> dict[str, Any] | None:
    """The outcome of a run that came to its end; None if there is none."""
    path = record_of(root, recipe, seed, steps)
    record = json.loads(path.read_text()) if path.is_file() else {"error": "never started"}
    return None if record["error"] or record["last_step"] != steps else record


def table(records: Iterable[dict[str, Any]], steps: int) -> str:
    """The section between the markers."""
    by_recipe: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_recipe.setdefault(record["recipe"], []).append(record)
    lines = [
        f"Held-out accuracy (greedy) before and after {steps} RL steps on the embedded policy and data, mean ±",
        "standard deviation over seeds. Seconds are those of one CPU core per RL step, held-out evaluations included.",
        "Finite: no update of any seed had a loss or gradient that is not a number. Recipes differ in learning rate",
        "and in updates per step, so this says that each one trains, not which is better.",
        "",
        "| recipe | seeds | start | end | gain, worst seed | seconds per step | finite |",
        "|---|---|---|---|---|---|---|",
    ]
    for recipe, runs in sorted(by_recipe.items()):
        cells = [
            f"`{recipe}`",
            str(len(runs)),
            _mean([r["start"] for r in runs]),
            _mean([r["end"] for r in runs]),
            f"{100 * min(r['end'] - r['start'] for r in runs):+.1f}",
            f"{statistics.mean(r['seconds_per_step'] for r in runs):.2f}",
            "yes" if all(r["finite"] for r in runs) else "**no**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(shares: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
    return f"{100 * statistics.mean(shares):.1f}{spread} %"


def put(section: str, path: Path) -> None:
    """Replace what stands between the markers; without markers the section is appended."""
    text = path.read_text(encoding="utf-8") if path.is_file() else "# Results\n"
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n## Every recipe\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{section}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing, then write the table; 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m lit_group_rl.cli.results", description=__doc__)
    parser.add_argument("recipes", nargs="*", help="default: all that start from the embedded policy")
    parser.add_argument("--steps", type=int, default=150, help="RL steps of each run")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to N")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="runs at a time; 0: write the table only")
    parser.add_argument("--runs", type=Path, default=Path("runs/every_recipe"), help="folder of the runs")
    parser.add_argument("--table", type=Path, default=catalog.PACKAGE.parent / "docs/results.md", help="file to write")
    args = parser.parse_args(argv)
    root = args.runs.resolve()
    root.mkdir(parents=True, exist_ok=True)
    recipes, seeds = args.recipes or embedded(), range(1, args.seeds + 1)
    # all recipes with one seed, then with the next: stopped early, every recipe has the same number of seeds
    wanted = [(recipe, seed) for seed in seeds for recipe in recipes]
    missing = [(recipe, seed) for recipe, seed in wanted if load(root, recipe, seed, args.steps) is None]
    failed = _train_all(root, missing, args.steps, args.workers) if args.workers else 0
    found = [load(root, recipe, seed, args.steps) for recipe, seed in wanted]
    put(table([record for record in found if record is not None], args.steps), args.table)
    return int(failed > 0)


def _train_all(root: Path, missing: list[tuple[str, int]], steps: int, workers: int) -> int:
    """Run after run in ``workers`` processes of one thread each; the number that failed."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch in the processes that are started below
    failed = 0
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(train, str(root), recipe, seed, steps) for recipe, seed in missing]
        try:
            for k, job in enumerate(as_completed(jobs), 1):
                record = job.result()
                failed += record["error"] is not None
                said = record["error"] or f"{record['start']:.3f} -> {record['end']:.3f}"
                print(f"{k}/{len(jobs)} {record['recipe']} seed {record['seed']}: {said}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # told to stop: no further run is begun
            raise
    return failed


if __name__ == "__main__":
    sys.exit(main())
