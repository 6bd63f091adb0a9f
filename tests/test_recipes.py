"""Every recipe runs: parsed and built as the command line does it, two RL steps, a checkpoint; and what differs is short."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from lit_group_rl.cli import catalog, run, run_folder
from lit_group_rl.tiny import TINY_FOLDER

RECIPES = sorted(catalog.files("recipes"))
SLOTS = list(yaml.safe_load(catalog.files("recipes")["grpo"].read_text())["model"])
EXTRA = {"pass_at_k": ["--model.advantage.k=2"]}
"""Of the overlay's group of 4 there is one subset of 4, which prefers nobody."""
WARM_UP = "sft_warmup"
"""Made the weights of the embedded policy: no algorithm, and another policy class."""


def smoke(recipe: str, root: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Path:
    """Two RL steps in this process; the folder of the run."""
    monkeypatch.setenv(run_folder.ENVIRONMENT, "")
    overlay = [] if recipe == WARM_UP else ["--config=scale/smoke"]
    common = [f"--run_root={root}", "--steps=2", "--trainer.accelerator=cpu"]
    assert run.fit([recipe, *overlay, *common, *options]) == 0
    return root / recipe / "0001"


def weights(folder: Path) -> dict[str, object]:
    """The policy's weights in the newest checkpoint."""
    name = (folder / "checkpoints" / "last").read_text().strip()
    stored = load_file(folder / "checkpoints" / name / "weights.safetensors")
    return {k.removeprefix("policy.model."): v for k, v in stored.items() if k.startswith("policy.")}


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_steps_move_the_weights(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = smoke(recipe, tmp_path, monkeypatch, *EXTRA.get(recipe, []))
    logged = rows(folder)
    losses = [float(r["loss/total"]) for r in logged if r.get("loss/total")]
    assert losses
    assert all(map(math.isfinite, losses))
    moved = [float(r["optim/update_to_weight"]) for r in logged if r.get("optim/update_to_weight")]
    assert max(moved) > 0
    after = weights(folder)
    if recipe != WARM_UP:
        before = load_file(TINY_FOLDER / "model.safetensors")
        shared = before.keys() & after.keys()
        assert shared
        assert any(not before[k].equal(after[k]) for k in shared)
