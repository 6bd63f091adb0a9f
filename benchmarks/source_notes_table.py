"""What the runs of source_notes.sh say: accuracy over the run with paired differences, spread of advantages, memory.

python -m benchmarks.source_notes_table compare/source_notes/runs
python -m benchmarks.source_notes_table compare/evaluator/runs --base=dapo_dual_agent
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import statistics
from pathlib import Path
from typing import NamedTuple

from lit_group_rl.cli.compare_statistics import paired

EARLY = 10
"""RL steps over which the spread of the advantages is compared, before the policies have grown apart."""


class Run(NamedTuple):
    """Numbers of one run."""

    end: float
    """Held-out accuracy after the last step, in percent."""
    over_the_run: float
    """Its mean over all evaluations: what a difference at the end by chance does not turn around."""
    spread: float
    """Deviation of the advantages."""
    fall: float
    """Largest loss of accuracy from one evaluation to the next, in points: how steady the run is."""
    memory_mb: float
    evaluator: float
    """Mean accuracy of the evaluator's verdicts, in percent; NaN without one."""


def read(folder: Path) -> dict[str, dict[int, Run]]:
    """Finished runs by variant and seed."""
    found: dict[str, dict[int, Run]] = {}
    for path in sorted(folder.glob("*-seed*/*/summary.json")):
        summary = json.loads(path.read_text())
        with (path.parent / "metrics.csv").open() as lines:
            rows = list(csv.DictReader(lines))

        def column(tag: str, rows: list[dict[str, str]] = rows) -> list[float]:
            return [float(row[tag]) for row in rows if row.get(tag) not in (None, "", "nan")]

        accuracy = [100 * a for a in column("eval/heldout/accuracy")]
        name, seed = path.parent.parent.name.rsplit("-seed", 1)
        if summary["heldout_end"] is not None and summary["rl_steps"] == int(rows[-1]["step"]):
            found.setdefault(name, {})[int(seed)] = Run(
                100 * summary["heldout_end"],
                statistics.mean(accuracy),
                statistics.mean(column("advantage/std")[:EARLY]),
                max([0.0, *(before - after for before, after in itertools.pairwise(accuracy))]),
                1000 * max(column("perf/peak_mem_gb")),
                100 * statistics.mean(column("evaluator/accuracy") or [math.nan]),
            )
    return found


def between(runs: dict[str, dict[int, Run]], new: str, old: str, what: str) -> str:
    """'+4.6 [+2.9, +6.2]': mean difference over the seeds of both, with its 95 % interval."""
    a, b = ({seed: getattr(run, what) for seed, run in runs.get(name, {}).items()} for name in (new, old))
    difference = paired(a, b)
    if difference.seeds < 2:
        return f"{difference.mean:+.2f} (one seed)" if difference.seeds else "-"
    return f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]"


def main() -> None:
    """Print the table, and the pairs that the questions are about."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="of the runs of a comparison")
    parser.add_argument("--base", default="grpo", help="variant that the others are compared with")
    options = parser.parse_args()
    runs, base = read(options.folder), options.base
    numbers = ["end", "over the run", f"less `{base}`", "advantage spread", "largest fall", "memory MB", "evaluator"]
    columns = ["variant", "seeds", *numbers]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, seeds in runs.items():
        means = [statistics.mean(values) for values in zip(*seeds.values(), strict=True)]
        against = "" if name == base else between(runs, name, base, "over_the_run")
        end, over, spread, fall, memory, judge = means
        cells = [f"{end:.1f}", f"{over:.1f}", against, f"{spread:.3f}", f"{fall:.1f}", f"{memory:.0f}"]
        cells.append("" if math.isnan(judge) else f"{judge:.1f}")
        print(f"| `{name}` | {len(seeds)} | {' | '.join(cells)} |")
    print()
    for name in runs:
        if name != base and not math.isnan(next(iter(runs[name].values())).evaluator):
            print(f"{name} - {base}, evaluator: {between(runs, name, base, 'evaluator')}")
    for new, old, what in (
        ("dapo_dynamic_clip", "grpo_asymmetric", "over_the_run"),
        ("vapo_light_critic", "grpo_no_division", "over_the_run"),
        ("vapo_light_critic", "grpo_no_division", "spread"),
        ("vapo_light_critic_group4", "grpo_no_division_group4", "over_the_run"),
        ("vapo_light_critic_group4", "grpo_no_division_group4", "spread"),
        ("gspo_stochastic_constant_noise", "gspo_stochastic", "over_the_run"),
        ("gspo_stochastic_constant_noise", "gspo_stochastic", "end"),
        ("gspo_supervised", "grpo", "end"),
        ("vapo_light_critic", "grpo", "fall"),
        ("dapo_dynamic_clip", "grpo", "fall"),
        ("gspo_stochastic", "grpo", "fall"),
        ("gspo_supervised", "grpo", "fall"),
        ("grpo_group4", "grpo", "fall"),
    ):
        if new in runs and old in runs:
            print(f"{new} - {old}, {what}: {between(runs, new, old, what)}")


if __name__ == "__main__":
    main()
