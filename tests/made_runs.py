"""A run folder as training leaves it, made without training."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from lit_group_rl import checkpoint
from lit_group_rl.cli.compose import compose, options_of
from lit_group_rl.cli.main import main
from lit_group_rl.tiny import TinyPolicy

SHIFT = 1e-4
"""What a step adds to each trained weight: once in the first, twice in the second."""


def make_run(folder: Path, *overlays: str) -> None:
    """GRPO on the embedded policy after two RL steps, the first of which was the better one."""
    config = compose(["grpo", *overlays])
    policy = TinyPolicy(**options_of(config.at("model.policy")))
    policy.load()
    for step in (1, 2):
        aside = folder / "checkpoints" / f"step_{step:06d}"
        aside.mkdir(parents=True)
        with torch.no_grad():
            for p in policy.net.parameters():
                if p.requires_grad:
                    p.add_(SHIFT * step)
        weights = {f"policy.{k}": v for k, v in policy.net.state_dict().items()}
        checkpoint._write(aside, weights, {"format": checkpoint.FORMAT, "rl_step": step})
    checkpoint.point(folder / "checkpoints", "best", "step_000001")
    checkpoint.point(folder / "checkpoints", "last", "step_000002")
    (folder / "config.yaml").write_text(yaml.safe_dump(config.values))
    (folder / "metrics.csv").write_text("step,eval/heldout/accuracy\n0,0.25\n1,0.5\n2,0.375\n")


def said(capsys, *argv: str) -> tuple[int, str, str]:
    """Give a command in this process: exit code, output, errors."""
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err
