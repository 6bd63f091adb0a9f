"""``compare``: recipes on an equal budget with paired seeds, or runs that are there already, in one report."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lit_group_rl.cli.compare_arms import DECIDED, Arm, arms_of, check_alike, steps_for
from lit_group_rl.cli.compare_runs import LOG, Job, Matrix
from lit_group_rl.cli.compose import split
from lit_group_rl.cli.refusal import Refusal, shown, suggest

if TYPE_CHECKING:
    from lit_group_rl.cli.compare_results import Comparison

OWN = ("seeds", "steps", "completions", "jobs", "out", "target")
HELP = """\
usage: lit-group-rl compare RECIPE|RUN... [--seeds=3] [--config=OVERLAY...] [--OPTION=VALUE...]

  Train recipes on an equal number of completions with paired seeds, and say whether they differ by more than chance.

  RECIPE            a name of `lit-group-rl ls` or a file; RECIPE+OVERLAY+... for a variant of it
  RUN               a run folder (runs/grpo/0001), or the folder of its runs (runs/grpo): read as it is, not run
  --config=OVERLAY  for all recipes, as are options such as --model.sampler.group_size=16

  --seeds=3         seeds 1 to 3; --seeds=1,2,7 names them
  --steps=N         budget: the completions of N RL steps of the first recipe; default: its own steps
  --completions=N   the budget itself
  --jobs=1          runs at a time
  --target=0.8      the held-out accuracy that is timed
  --out=FOLDER      default: compare/ and the names; given again, the command goes on there with what is missing

  Leaves report.html, report.md, curves.png, curves.csv and the run folders. Exit code 1: a run failed.
  How to read it: docs/compare.md"""


@dataclass(frozen=True)
class Request:
    """The command line."""

    arguments: list[str]
    overlays: list[str]
    options: list[str]
    """For every run."""
    seeds: list[int]
    steps: int | None
    completions: int | None
    jobs: int
    target: float
    out: Path | None


def compare(argv: Sequence[str]) -> int:
    """Run what is missing and write the report."""
    if not argv or any(word in ("-h", "--help") for word in argv):
        print(HELP)
        return 0
    request = parse(argv)
    arms, notes = arms_of(request.arguments, request.overlays, request.options)
    if len(arms) < 2:
        fix = "For example lit-group-rl compare grpo dapo --seeds=3."
        raise Refusal("compare", f"takes two recipes or runs, got {len(arms)} ({', '.join(a.name for a in arms)})", fix)
    notes += check_alike(arms)
    recipes = [arm for arm in arms if arm.words]
    budget = _budget(request, recipes)
    out = request.out or Path("compare", "-".join(re.sub(r"[^A-Za-z0-9._-]", "_", arm.name) for arm in arms)[:100])
    jobs = [Job(arm, seed, out / "runs", budget) for seed in request.seeds for arm in recipes]
    matrix = Matrix(jobs, request.jobs)
    for line in headline(budget, recipes, request.seeds, notes):
        print(line, flush=True)
    if jobs:
        _run(matrix)
    comparison = _gather(arms, matrix, budget, request.target, notes)
    return _report(comparison, out, argv, bool(matrix.failed))


def parse(argv: Sequence[str]) -> Request:
    """Own options apart from those of the runs."""
    # split takes --config for one more name, but here overlays are not recipes
    words = [re.sub(r"^(--config|-c)(?==|$)", "--overlay", word) for word in argv]
    arguments, pairs = split(words)
    own = {key: text or "" for key, text in pairs if key in OWN}
    overlays = [text or "" for key, text in pairs if key == "overlay"]
    options = []
    for key, text in pairs:
        if key in DECIDED:
            raise Refusal(f"--{key}", "is decided by the comparison", f"Give {DECIDED[key]}.")
        if key not in (*OWN, "overlay"):
            if "." not in key:
                raise Refusal(f"--{key}", "is no option of compare", suggest(key, OWN))
            options.append(f"--{key}" if text is None else f"--{key}={text}")
    if "steps" in own and "completions" in own:
        raise Refusal("--completions", "and --steps both set the budget", "Give one of them.")
    target = own.get("target", "0.8")
    try:
        share = float(target)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise Refusal("--target", f"'{target}' is no share", "Give a number above 0 and at most 1, such as 0.8.")
    return Request(
        arguments,
        overlays,
        options,
        _seeds(own.get("seeds", "3")),
        _whole("steps", own["steps"]) if "steps" in own else None,
        _whole("completions", own["completions"]) if "completions" in own else None,
        _whole("jobs", own.get("jobs", "1")),
        share,
        Path(own["out"]) if own.get("out") else None,
    )


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise Refusal(f"--{name}", f"'{text}' is no whole number above 0", f"For example --{name}=3.")
    return int(text)


def _seeds(text: str) -> list[int]:
    if "," not in text:
        return list(range(1, _whole("seeds", text) + 1))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise Refusal("--seeds", f"'{text}' is no list of different seeds", "For example --seeds=1,2,7.")
    return [int(part) for part in parts]


def _budget(request: Request, recipes: Sequence[Arm]) -> int:
    """Completions of each run; 0 where nothing is run."""
    if not recipes:
        if request.steps or request.completions:
            fix = "Without it they are read where the shortest ends."
            raise Refusal("--completions", "sets the budget of runs, and only run folders are given", fix)
        return 0
    first = recipes[0]
    return request.completions or first.completions_per_step * (request.steps or first.steps)


def headline(budget: int, recipes: Sequence[Arm], seeds: Sequence[int], notes: Sequence[str]) -> list[str]:
    """What is about to happen."""
    lines = []
    if recipes:
        steps = {steps_for(arm, budget) for arm in recipes}
        said = f"{steps.pop()} RL steps" if len(steps) == 1 else f"{min(steps)} to {max(steps)} RL steps"
        from lit_group_rl.cli.compare_report import number

        equal = f"equal budget: {number(budget)} completions each (at most {said})"
        label = "seed" if len(seeds) == 1 else "seeds"
        lines = [f"{equal} · same tasks, same start weights · {label} {', '.join(map(str, seeds))}"]
    return [*lines, *(f"note: {note}" for note in notes)]


def _run(matrix: Matrix) -> None:
    total = len(matrix.jobs)
    if matrix.skipped:
        print(f"{matrix.skipped} of {total} runs were finished before")
    if matrix.waiting:
        print(f"runs in {shown(matrix.jobs[0].root)}, one log each; Ctrl-C stops, the same command goes on", flush=True)
    from lit_group_rl.callbacks.console import CONSOLE
    from lit_group_rl.callbacks.progress import duration
    from lit_group_rl.cli.compare_results import ACCURACY, result

    looked = -math.inf

    def left(matrix: Matrix) -> str:
        seconds = matrix.seconds_left()
        return f" · about {duration(seconds)} left" if seconds is not None else ""

    def tell(matrix: Matrix, job: Job | None) -> None:
        nonlocal looked
        if job is None:
            # reading the numbers of all running ones takes a while where they are long
            if CONSOLE.terminal and time.monotonic() - looked > 3:
                running = ", ".join(
                    f"{j.arm.name} seed {j.seed} {j.done() / j.completions:.0%}" for j in matrix.running
                )
                CONSOLE.live(f"{matrix.ended} of {total} runs · {running}{left(matrix)}")
                looked = time.monotonic()
            return
        head = f"{matrix.ended} of {total} · {job.arm.name} seed {job.seed}"
        folder = job.folder()
        if job in matrix.failed:
            CONSOLE.line(f"{head} · failed: {matrix.failed[job]} ({shown(job.home / LOG)}){left(matrix)}")
        elif folder is not None:
            found = result(job.seed, folder, job.completions, 1.0)
            ends = f"{found.start:.1%} → {found.curves[ACCURACY][-1][1]:.1%} · {duration(found.seconds)}"
            CONSOLE.line(f"{head} · held-out {ends}{left(matrix)}")

    try:
        matrix.run(tell)
    except BaseException:
        CONSOLE.end()
        print(f"stopped: {matrix.ended} of {total} runs have ended; the same command goes on", file=sys.stderr)
        raise
    CONSOLE.end()


def _gather(arms: Sequence[Arm], matrix: Matrix, budget: int, target: float, notes: list[str]) -> Comparison:
    from lit_group_rl.cli.compare_report import number
    from lit_group_rl.cli.compare_results import Comparison, Side, end_of, read, result

    ends = [end_of(read(folder)) for arm in arms for folder in arm.folders.values()]
    at = min([*ends, float(budget or math.inf)])
    if ends and (max(ends) > at or at < budget):
        notes.append(f"all are read at {number(at)} completions, where the shortest run ends")
        print(f"note: {notes[-1]}")
    if at <= 0:
        fix = "Give runs that have made a step."
        raise Refusal("compare", "one of the runs has no completions in its metrics.csv", fix)
    sides = {arm: Side(arm) for arm in arms}
    for arm in arms:
        for seed, folder in sorted(arm.folders.items()):
            sides[arm].runs[seed] = result(seed, folder, at, target)
    for job in matrix.jobs:
        begun = job.folder()
        if job in matrix.failed:
            sides[job.arm].failed[job.seed] = matrix.failed[job]
        elif begun is not None:
            sides[job.arm].runs[job.seed] = result(job.seed, begun, at, target)
    return Comparison(list(sides.values()), at, target, notes)


def _report(comparison: Comparison, out: Path, argv: Sequence[str], failed: bool) -> int:
    from lit_group_rl.cli import compare_report

    command = "lit-group-rl compare " + shlex.join(argv)
    files = compare_report.write(comparison, out, command, _machine())
    print(compare_report.on_screen(comparison))
    print(f"wrote {shown(out)}/{{{', '.join(files)}}}")
    return 1 if failed else 0


def _machine() -> str:
    from lit_group_rl import __version__

    return f"lit-group-rl {__version__}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"
