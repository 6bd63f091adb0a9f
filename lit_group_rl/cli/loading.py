"""A run's policy with its trained weights, for the commands that use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_group_rl.cli import run_folder
from lit_group_rl.cli.refusal import Refusal, shown

if TYPE_CHECKING:
    from lit_group_rl.checkpoint import Checkpoint


def load(command: str, run: Path, which: str) -> tuple[Any, Checkpoint]:
    """What the run's config.yaml describes (``model``, ``datamodule``), the policy loaded; and its checkpoint."""
    if not run_folder.has_checkpoint(run):
        raise Refusal(command, f"{shown(run)} holds no checkpoint", "Give a run folder such as runs/grpo/0001.")
    from lit_group_rl import checkpoint
    from lit_group_rl.cli.lightning_cli import build
    from lit_group_rl.cli.run import prepare, quieten

    quieten()
    cli = build(prepare([str(run / run_folder.CONFIG)]))
    with refusing():
        return cli, checkpoint.load_policy(cli.model.policy, run, which)


@contextmanager
def refusing() -> Iterator[None]:
    """A RecipeError as a refusal."""
    from lit_group_rl.types import RecipeError

    try:
        yield
    except RecipeError as error:
        field, _, rest = str(error).partition(": ")
        what, _, fix = rest.partition(". ")
        raise Refusal(field, what, fix) from error
