"""``samples``: what a run wrote, prompt by prompt, from its samples.jsonl; without torch."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lit_group_rl.cli.arguments import RUN_HELP, Arguments, find_run
from lit_group_rl.cli.refusal import Refusal, shown
from lit_group_rl.plain_text import plain_prompt, safe

FILE = "samples.jsonl"
GREEN, RED, DIM, BOLD, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[1m", "\x1b[0m"
MARKS = {True: "✓", False: "✗", None: " "}


def samples(argv: Sequence[str]) -> int:
    """``samples RUN [--step N] [--group I] [--sort ...] [--worst] [--grep TEXT] [--n N]``."""
    parser = Arguments(
        "samples",
        "Completions of a run by group: best reward first, groups in the order of the step.",
        "A line holds reward, whether it is solved, advantage, tokens, and the completion.  A run keeps the first 16\n"
        "prompts of its first RL step, of every 20th and of the last: options of the callback SampleTable.",
    )
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--step", type=int, help="RL step, or the kept one before it; default: the last one kept")
    parser.add_argument("--group", type=int, metavar="I", help="only the I-th group, its completions in full")
    parser.add_argument("--sort", choices=("reward", "length"), default="reward", help="order within a group")
    parser.add_argument("--worst", action="store_true", help="groups with the lowest mean first, in them the lowest")
    parser.add_argument("--grep", metavar="TEXT", help="only completions and prompts that contain this, of all steps")
    parser.add_argument("--n", type=int, default=4, metavar="N", help="groups shown, 0 for all (default: 4)")
    parser.add_argument("--full", action="store_true", help="completions as they are, not cut to a line")
    args = parser.parse_args(argv)
    if args.n < 0:
        raise Refusal("--n", f"must be at least 0, got {args.n}", "0 shows all groups.")
    run = find_run("samples", args.run)
    groups = read(run)
    steps = sorted({g["step"] for g in groups})
    if args.step is not None or args.grep is None:
        step = _step(steps, args.step)
        groups = [g for g in groups if g["step"] == step]
        about = f"step {step} of {_some(steps)}"
    else:
        about = f"steps {_some(steps)}"
    if args.group is not None:
        groups = [g for g in groups if g["number"] == args.group]
        if not groups:
            raise Refusal("--group", f"there is no group {args.group} in {about}", "They are counted from 1.")
    if args.grep is not None:
        groups = _containing(groups, args.grep)
        about += f" · with {safe(args.grep, 40)!r}"
    if args.worst:
        groups.sort(key=lambda g: (g["mean"] is None, g["mean"] or 0.0))
    shown_groups = groups if args.n == 0 or args.group is not None else groups[: args.n]
    painted = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    lines = [headline(run, about, groups)]
    for group in shown_groups:
        members = ordered(group["members"], args.sort, args.worst)
        lines += ["", *block(group, members, full=args.full or args.group is not None, colour=painted)]
    if len(shown_groups) < len(groups):
        lines += ["", f"{len(groups) - len(shown_groups)} more groups: --n 0"]
    _write("\n".join(lines))
    return 0


def read(run: Path) -> list[dict[str, Any]]:
    """All groups that a run kept, in order; each with its ``number`` within the step and its ``mean``."""
    path = run / FILE
    if not path.is_file():
        fix = "Only the fit command writes it, after the first RL step; SampleTable must not be taken out."
        raise Refusal("samples", f"{shown(run)} has no {FILE}", fix)
    groups: list[dict[str, Any]] = []
    count: dict[int, int] = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                group = json.loads(line)
            except ValueError:  # the line that is being written
                continue
            count[group["step"]] = group["number"] = count.get(group["step"], 0) + 1
            group["mean"] = mean(group["members"])
            groups.append(group)
    if not groups:
        raise Refusal("samples", f"{shown(path)} holds no group yet", "Wait for the first RL step.")
    return groups


def _step(steps: list[int], asked: int | None) -> int:
    """The kept step that is asked for, or the nearest before it."""
    before = [s for s in steps if asked is None or s <= asked]
    if not before:
        raise Refusal("--step", f"nothing is kept of step {asked} or before", f"Kept: {_some(steps)}.")
    return before[-1]


def _some(steps: list[int]) -> str:
    if len(steps) <= 8:
        return ", ".join(map(str, steps))
    return f"{', '.join(map(str, steps[:3]))}, …, {', '.join(map(str, steps[-2:]))}"


def _containing(groups: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Groups with the members that contain a text; with all of them where the prompt does."""
    found = []
    for group in groups:
        whole = text in plain_prompt(group["prompt"])
        members = [m for m in group["members"] if whole or text in m["completion"]]
        if members:
            found.append({**group, "members": members, "of": len(group["members"])})
    return found


def ordered(members: list[dict[str, Any]], by: str, worst: bool) -> list[dict[str, Any]]:
    """Best reward or longest first, with ``worst`` lowest or shortest first; the unscored at the end."""
    key = {"reward": "total", "length": "length"}[by]
    sign = 1 if worst else -1
    return sorted(members, key=lambda m: (m[key] is None, sign * (m[key] or 0)))


def mean(members: list[dict[str, Any]]) -> float | None:
    """Mean total of the members that have one."""
    known = [m["total"] for m in members if m["total"] is not None]
    return sum(known) / len(known) if known else None


def headline(run: Path, about: str, groups: list[dict[str, Any]]) -> str:
    """'runs/grpo/0001 · step 20 of 1, 20 · 4 groups, 32 completions · reward 0.47 · solved 47%'."""
    members = [m for g in groups for m in g["members"]]
    parts = [shown(run), about, f"{len(groups)} group{'s' * (len(groups) != 1)}, {len(members)} completions"]
    reward = mean(members)
    parts += [f"reward {reward:.2f}"] if reward is not None else []
    solved = [m["solved"] for m in members if m["solved"] is not None]
    parts += [f"solved {sum(solved) / len(solved):.0%}"] if solved else []
    return " · ".join(parts)


def block(group: dict[str, Any], members: list[dict[str, Any]], full: bool, colour: bool) -> list[str]:
    """A group: prompt and answer, then a line per completion, or with ``full`` its whole text."""

    def paint(text: str, code: str) -> str:
        return f"{code}{text}{PLAIN}" if colour else text

    width = shutil.get_terminal_size((120, 24)).columns
    facts = [] if group["answer"] is None else [f"answer {safe(group['answer'], 60)}"]
    facts += [] if group["mean"] is None else [f"group mean {group['mean']:.2f}"]
    facts += [f"{len(members)} of {group['of']} shown"] if group.get("of", len(members)) > len(members) else []
    title = f"step {group['step']} group {group['number']}"
    room = max(30, width - len(title) - sum(len(f) + 3 for f in facts) - 2)
    prompt = plain_prompt(group["prompt"])
    lines = [" · ".join([f"{paint(title, BOLD)}  {'' if full else safe(prompt, room)}".rstrip(), *facts])]
    lines += _indented(prompt, "  │ ") if full else []
    names = list(members[0]["rewards"]) if members else []
    for m in members:
        mark = MARKS[m["solved"]]
        mark = paint(mark, GREEN if m["solved"] else RED) if m["solved"] is not None else mark
        total = "    -" if m["total"] is None else f"{m['total']:5.2f}"
        advantage = "     -" if m["advantage"] is None else f"{m['advantage']:+6.2f}"
        parts = "" if len(names) < 2 else "  " + " ".join(f"{n} {_number(m['rewards'].get(n))}" for n in names)
        end = " cut" if m["end"] == "cut" else ""
        role = "" if m.get("role", "policy") == "policy" else f" {m['role']}"
        tail = paint(f"{advantage}  {m['length']:>4} tok{end}{role}{parts}", DIM)
        room = max(
            20, width - len(f"  {total} x {advantage}   tok  ") - 4 - len(end + role + parts) - len("… (+99999)")
        )
        several = full and "\n" in m["completion"]
        text = "" if several else safe(m["completion"], None if full else room) or "∅"
        lines.append(f"  {total} {mark} {tail}  {text}".rstrip())
        lines += _indented(m["completion"], "      │ ") if several else []
    return lines


def _indented(text: str, edge: str) -> list[str]:
    return [edge + safe(line) for line in text.split("\n")]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
