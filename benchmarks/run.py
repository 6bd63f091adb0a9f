"""The whole comparison: interleaved pairs of runs, scaling curves, the machine's limit; tables and pictures from them.

python -m benchmarks.run --trl-python .venv-trl/bin/python         # measures, then renders
python -m benchmarks.run --render                                  # from benchmarks/results.jsonl alone
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import curves_png, table
from benchmarks.workloads import CURVES, WORKLOADS

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
TARGETS = {"W1": (4.0, 2.5), "W2": (6.5, 7.0), "W3": (10.0, 4.0), "W4": (8.0, 4.0)}
"""Throughput and memory growth against TRL."""


def one(python: str, side: str, workload: str, *options: str) -> dict[str, Any]:
    """Run one side in its own process; its JSON line."""
    command = [python, "-m", "benchmarks.side", side, workload, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_gflops() -> float:
    """Matrix products of 1024 x 1024 on one thread: what the machine can do now."""
    import time

    import torch

    torch.set_num_threads(1)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 0.0
    for _ in range(10):
        began = time.process_time()
        torch.mm(a, b)
        best = max(best, 2 * 1024**3 / (time.process_time() - began) / 1e9)
    return best


def measure(args: argparse.Namespace, results: Path) -> None:
    """Append one line per run to ``results``."""

    def keep(kind: str, key: Any, line: dict[str, Any]) -> None:
        with results.open("a") as file:
            file.write(json.dumps({"kind": kind, "key": key} | line) + "\n")
        print(
            kind, key, line.get("side"), line.get("cycle_cpu_s"), "CPU s", line.get("rss_growth_mb"), "MB", flush=True
        )

    sides = [("ours", sys.executable), ("trl", args.trl_python)]
    cycles = ["--cycles", str(args.cycles)]
    for pair in range(args.pairs):
        for name in args.workloads:
            for side, python in sides if pair % 2 == 0 else sides[::-1]:
                keep("pair", [name, pair], one(python, side, name, *cycles))
    if args.curves:
        for curve, points in CURVES.items():
            for x, w in points.items():
                base = WORKLOADS["W1"]
                changes = [f"--set={k}={v}" for k, v in vars(w).items() if v != getattr(base, k)]
                for side, python in sides:
                    keep("curve", [curve, x], one(python, side, "W1", *changes, "--cycles", "1"))
    for name in args.workloads:
        line = one(sys.executable, "ours", name, "--cycles", "1", "--flops")
        keep("flops", name, {"gflop": sum(line["phase_gflop"].values()), "tokens": line["completion_tokens"]})
    keep("peak", "mm", {"gflops": peak_gflops()})


def main(argv: list[str] | None = None) -> None:
    """Read the command line, measure unless told not to, render."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trl-python", default=str(HERE.parent / ".venv-trl/bin/python"))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--workloads", nargs="*", default=sorted(WORKLOADS))
    parser.add_argument("--no-curves", dest="curves", action="store_false")
    parser.add_argument("--render", action="store_true", help="measure nothing")
    parser.add_argument("--results", type=Path, default=HERE / "results.jsonl")
    args = parser.parse_args(argv)
    if not args.render:
        args.results.unlink(missing_ok=True)
        measure(args, args.results)
    lines = [json.loads(line) for line in args.results.read_text().splitlines()]
    text = table(lines, TARGETS)
    print(text)
    page = DOCS / "performance.md"
    if page.exists():
        before, _, rest = page.read_text().partition("<!-- table -->\n")
        _, _, after = rest.partition("<!-- end of table -->")
        page.write_text(f"{before}<!-- table -->\n{text}\n<!-- end of table -->{after}")
    curves_png(lines, DOCS / "img" / "performance.png")


if __name__ == "__main__":
    main()
