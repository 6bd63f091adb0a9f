"""``export``: a run's policy as a plain Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.refusal import Refusal, shown


def export(argv: Sequence[str]) -> int:
    """``export RUN DIR``."""
    if len(argv) != 2:
        raise Refusal(
            "export", f"takes a run and a new folder, got {len(argv)}", "lit-group-rl export runs/grpo/0001 DIR."
        )
    run, out = Path(argv[0]), Path(argv[1])
    if not run_folder.has_checkpoint(run):
        raise Refusal("export", f"{shown(run)} holds no checkpoint", "Give a run folder such as runs/grpo/0001.")
    from lit_group_rl import checkpoint
    from lit_group_rl.cli.run import load_module
    from lit_group_rl.types import RecipeError

    try:
        folder = checkpoint.export(load_module(run / run_folder.CONFIG).policy, run, out)
    except RecipeError as error:
        field, _, rest = str(error).partition(": ")
        what, _, fix = rest.partition(". ")
        raise Refusal(field, what, fix) from error
    print(f"wrote {shown(folder)}")
    return 0
