"""What the report of a comparison says, and its files."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lit_group_rl.cli.compare_arms import algorithm_differences
from lit_group_rl.cli.compare_document import Block, Grid, Heading, Picture, Text, markdown, page
from lit_group_rl.cli.compare_results import TAGS, Comparison, Side
from lit_group_rl.cli.compare_statistics import Difference, spread, t_quantile
from lit_group_rl.cli.refusal import shown

CURVES, CSV, MARKDOWN, PAGE = "curves.png", "curves.csv", "report.md", "report.html"
UNKNOWN = "-"


def blocks(comparison: Comparison, command: str, machine: str) -> list[Block]:
    """The whole report."""
    names = [side.name for side in comparison.sides]
    seeds = ", ".join(map(str, comparison.seeds))
    found: list[Block] = [
        Heading(f"{names[0]} against {' and '.join([', '.join(names[1:-1])] * (len(names) > 2) + names[-1:])}", 1),
        Text(f"{number(comparison.budget)} completions for each run, seeds {seeds}. {machine}."),
        *(Text(line) for line in verdicts(comparison)),
        *(Text(note, warning=True) for note in comparison.notes),
        *(Text(line, warning=True) for line in failures(comparison)),
        Picture(
            CURVES,
            "Thin lines are seeds, thick lines their mean. Live groups are those whose members differ in reward.",
        ),
        Heading("Result"),
        result_table(comparison),
        Text(
            f"Mean ± standard deviation over seeds, read at {number(comparison.budget)} completions. Area: mean "
            "accuracy on the way there. Entropy and length: mean over the last tenth. Live groups: mean over the run. "
            "Diverged: runs in which the loss or gradient of an update was not a number."
        ),
        Heading("Paired differences"),
        difference_table(comparison),
        Text(reading(comparison)),
        Heading("Cost"),
        cost_table(comparison),
        Heading("What differs"),
        *settings(comparison),
        Heading("Runs"),
        run_table(comparison),
    ]
    return [*found, Heading("Made by"), Text(f"`{command}`")] if command else found


def verdicts(comparison: Comparison) -> list[str]:
    """A sentence per pair on the accuracy at the budget."""
    said = []
    for new, old in comparison.pairs():
        d = comparison.difference(new, old)
        where = f", 95 % interval {interval(d)}, {d.seeds} paired seeds" if d.seeds > 1 else ""
        amount = f"{points(d.mean)} points{where}: " if d.seeds else ""
        said.append(f"{new.name} - {old.name}: {amount}{d.verdict}.")
    return said


def failures(comparison: Comparison) -> list[str]:
    """A line per run that has no result."""
    return [
        f"{side.name}, seed {seed}, failed and is in no number below: {why}"
        for side in comparison.sides
        for seed, why in side.failed.items()
    ]


def result_table(comparison: Comparison) -> Grid:
    """What each side reached."""
    head = ["", "held-out accuracy (%)", f"completions to {100 * comparison.target:g}\u00a0%", "area (%)"]
    head += ["entropy", "live groups (%)", "length", "diverged"]
    rows = [
        [
            side.name,
            spread_of(side, "accuracy", percent),
            until_target(side),
            spread_of(side, "area", percent),
            spread_of(side, "entropy", "{:.2f}".format),
            spread_of(side, "live", percent),
            spread_of(side, "length", "{:.1f}".format),
            f"{sum(not run.finite for run in side.runs.values())} of {len(side.runs)}",
        ]
        for side in comparison.sides
    ]
    return Grid(head, rows)


def difference_table(comparison: Comparison) -> Grid:
    """Each pair with its interval and what may be said."""
    rows = []
    for new, old in comparison.pairs():
        for quantity, label in (("accuracy", "accuracy"), ("area", "area")):
            d = comparison.difference(new, old, quantity)
            rows.append([f"{new.name} - {old.name}, {label}", points(d.mean), interval(d), str(d.seeds), d.verdict])
    return Grid(["", "points", "95 % interval", "seeds", "verdict"], rows)


def cost_table(comparison: Comparison) -> Grid:
    """What each side took, mean over seeds."""
    head = ["", "seconds per step", "RL steps", "completions", "tokens", "seconds in all", "peak memory (GB)"]
    columns: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("seconds_per_step", "{:.2f}".format),
        ("steps", number),
        ("completions", number),
        ("tokens", number),
        ("seconds", number),
        ("memory", "{:.2f}".format),
    )
    return Grid(head, [[s.name, *(average(s.values(q), form) for q, form in columns)] for s in comparison.sides])


def run_table(comparison: Comparison) -> Grid:
    """Every run with its folder."""
    rows = []
    for side in comparison.sides:
        for run in side.runs.values():
            cells = [percent(run.start), percent(run.accuracy), number(run.completions), shown(run.folder)]
            rows.append([side.name, str(run.seed), *cells])
        rows += [[side.name, str(seed), UNKNOWN, "failed", UNKNOWN, why] for seed, why in side.failed.items()]
    return Grid(["", "seed", "start (%)", "end (%)", "completions", "folder"], rows)


def settings(comparison: Comparison) -> list[Block]:
    """Slot by slot, each side against the first."""
    first, *others = comparison.sides
    found: list[Block] = []
    for other in others:
        rows = [[f"`{key}`", old, new] for key, old, new in algorithm_differences(first.arm, other.arm)]
        if rows:
            found.append(Grid([f"{other.name} against {first.name}", first.name, other.name], rows))
        else:
            found.append(Text(f"{other.name} and {first.name} have the same settings."))
    return found


def reading(comparison: Comparison) -> str:
    """How far the intervals can be trusted."""
    text = (
        "Points are percentage points. The interval holds the true mean difference in 95 of 100 such comparisons, if "
        "differences between seeds are about normal; where it holds 0 the seeds do not tell the two apart."
    )
    counts = {comparison.difference(new, old).seeds for new, old in comparison.pairs()}
    few = min((n for n in counts if n > 1), default=0)
    if 1 < few < 5:
        text += (
            f" With {few} seeds it reaches {t_quantile(few - 1):.1f} standard errors to each side (with 10 seeds 2.3): "
            "only a large difference can be seen."
        )
    if len(comparison.pairs()) > 1:
        text += " Each interval stands for itself: of 20 pairs without a difference one would seem to have one."
    return text


def spread_of(side: Side, quantity: str, form: Callable[[float], str]) -> str:
    """'93.6 ± 0.9', without the deviation of a single run."""
    values = side.values(quantity)
    deviation = spread(values)
    return average(values, form) + (f" ± {form(deviation)}" if deviation is not None else "")


def until_target(side: Side) -> str:
    """Mean completions until the target where all seeds reach it, else how many do."""
    reached = side.values("reached")
    if reached and len(reached) == len(side.runs):
        return number(statistics.fmean(reached))
    return f"{len(reached)} of {len(side.runs)} seeds" if reached else "not reached"


def average(values: Sequence[float], form: Callable[[float], str]) -> str:
    """The mean, or a dash where there is nothing."""
    return form(statistics.fmean(values)) if values else UNKNOWN


def percent(share: float) -> str:
    """Without the sign, which stands in the head."""
    return f"{100 * share:.1f}" if math.isfinite(share) else UNKNOWN


def points(share: float) -> str:
    """A difference of shares in percentage points."""
    # adding 0 takes the sign off a rounded -0.0
    return f"{round(100 * share, 1) + 0.0:+.1f}" if math.isfinite(share) else UNKNOWN


def interval(d: Difference) -> str:
    """'[+0.6, +4.1]'."""
    return f"[{points(d.low)}, {points(d.high)}]" if d.seeds > 1 else UNKNOWN


def number(value: float) -> str:
    """Thousands apart."""
    return f"{value:,.0f}".replace(",", " ") if math.isfinite(value) else UNKNOWN


def on_screen(comparison: Comparison) -> str:
    """The two tables that matter, as text."""
    lines = _columns(result_table(comparison))
    differences = difference_table(comparison)
    rows = [row for row in differences.rows if row[0].endswith(", accuracy")]
    lines += [
        "",
        *_columns(Grid(["accuracy", *differences.head[1:]], [[r[0][: -len(", accuracy")], *r[1:]] for r in rows])),
    ]
    for other in comparison.sides[1:]:
        changed = algorithm_differences(comparison.sides[0].arm, other.arm)
        said = " · ".join(f"{key.removeprefix('model.')} {new} ({old})" for key, old, new in changed)
        lines.append(f"differs in  {other.name}: {said or 'nothing'}")
    return "\n".join(["", *lines])


def _columns(table: Grid) -> list[str]:
    cells = [table.head, *table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.head))]
    return [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def table_of_curves(comparison: Comparison) -> str:
    """curves.csv: every measured point, a line each."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["recipe", "seed", "quantity", "completions", "value"])
    for side in comparison.sides:
        for run in side.runs.values():
            for name in TAGS:
                rows: list[list[Any]] = [[side.name, run.seed, name, round(x), repr(y)] for x, y in run.curves[name]]
                writer.writerows(rows)
    return out.getvalue()


def write(comparison: Comparison, folder: Path, command: str, machine: str) -> list[str]:
    """All files; returns their names."""
    from lit_group_rl.callbacks.base import write_atomic
    from lit_group_rl.cli import compare_figure

    report = blocks(comparison, command, machine)
    colours = {s.name: c for s, c in zip(comparison.sides, compare_figure.COLOURS, strict=False)}
    folder.mkdir(parents=True, exist_ok=True)
    compare_figure.png(comparison, folder / CURVES)
    write_atomic(folder / CSV, table_of_curves(comparison))
    write_atomic(folder / MARKDOWN, markdown(report))
    write_atomic(folder / PAGE, page(report, compare_figure.svg(comparison), colours))
    return [PAGE, MARKDOWN, CURVES, CSV]
