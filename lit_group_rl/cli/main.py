"""The ``lit-group-rl`` command: what needs no torch answers at once, the rest is imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from lit_group_rl.cli.refusal import Refusal, suggest

COMMANDS: dict[str, tuple[str, str, str]] = {
    "fit": ("RECIPE [OVERLAY...] [--OPTION=VALUE...]", "train from a recipe", "run:fit"),
    "check": ("RECIPE [OVERLAY...] [--OPTION=VALUE...]", "find mistakes before a step is spent", "check:check"),
    "validate": ("RECIPE --resume=RUN", "held-out evaluation of a run", "run:validate"),
    "test": ("RECIPE --resume=RUN", "the same on the test prompts", "run:test"),
    "predict": ("RECIPE --resume=RUN", "completions of a run for the held-out prompts", "run:predict"),
    "ls": ("[recipes | configs | SLOT | CLASS]", "recipes, overlays, slots, components and their options", "show:ls"),
    "cat": ("NAME [OVERLAY...] [--resolved]", "print a recipe, or all that it resolves to", "show:cat"),
    "diff": ("RECIPE RECIPE", "what two recipes do differently, slot by slot", "show:diff"),
    "compare": (
        "RECIPE|RUN... [--seeds=3] [--config=OVERLAY...]",
        "recipes on equal budget, paired seeds, one report",
        "compare:compare",
    ),
    "samples": ("RUN [--step N] [--worst] [--grep TEXT]", "what a run wrote, by group", "samples:samples"),
    "play": ("RUN [--prompt TEXT] [--temperature T] [--n N]", "ask a run", "play:play"),
    "new": ("KIND NAME [--folder=my_parts]", "a component of your own with a test, to start from", "new:new"),
    "export": ("RUN DIR [--adapter]", "write a plain Hugging Face folder", "export:export"),
}
"""Command -> (arguments, what it does, module:function)."""
SELF_EXPLAINED = ("run", "compare", "samples", "play", "export")
"""Modules whose --help says more."""


def first_screen() -> str:
    """What the bare command and --help show."""
    lines = [f"  {name:<10}{what}" for name, (_, what, _) in COMMANDS.items()]
    return "\n".join(
        [
            "lit-group-rl: group-relative RL of language models, an algorithm is a recipe",
            "",
            "  try this first    lit-group-rl fit grpo        learns in a few minutes on a laptop, offline",
            "  see recipes       lit-group-rl ls              see parts   lit-group-rl ls advantage",
            "",
            *lines,
            "",
            "'lit-group-rl COMMAND --help' explains a command, 'lit-group-rl --version' tells the version.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 refused, 3 stopped, 130 and 143 interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(first_screen())
        return 0
    if argv[0] == "--version":
        from lit_group_rl import __version__

        print(f"lit-group-rl {__version__}")
        return 0
    try:
        return _dispatch(argv[0], argv[1:])
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return Refusal.exit_code
    except KeyboardInterrupt:
        return 130
    except SystemExit as stop:
        if isinstance(stop.code, str):
            raise
        return stop.code or 0
    except BrokenPipeError:
        # the reader (head, less) went away; without this Python complains again when it closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(command: str, rest: list[str]) -> int:
    if command not in COMMANDS:
        raise Refusal("command", f"'{command}' is not known", suggest(command, COMMANDS))
    arguments, what, target = COMMANDS[command]
    if rest in (["-h"], ["--help"]) and target.partition(":")[0] not in SELF_EXPLAINED:
        print(f"usage: lit-group-rl {command} {arguments}\n\n  {what}")
        return 0
    module, _, function = target.partition(":")
    return int(getattr(importlib.import_module(f"lit_group_rl.cli.{module}"), function)(rest))


if __name__ == "__main__":
    sys.exit(main())
