"""Every recipe runs: built as the command line does it, two RL steps, a checkpoint; and what differs is short."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from lit_group_rl.cli import catalog, run, run_folder
from lit_group_rl.cli.compose import class_of, options_of
from lit_group_rl.tiny import TINY_FOLDER

RECIPES = sorted(catalog.files("recipes"))
SLOTS = [s for s in yaml.safe_load(catalog.files("recipes")["grpo"].read_text())["model"] if s in catalog.slots()]
EXTRA = {
    # of the overlay's group of 4 there is one subset of 4, which prefers nobody
    "pass_at_k": ["--model.advantage.k=2"],
    # in two steps another model must learn and then the policy too
    "vc_ppo": ["--model.update_schedule.steps=1"],
    "vapo": ["--model.update_schedule.steps=1"],
    "dapo_dual_agent": [
        "--model.update_schedule.warm_up.evaluator=0",
        "--model.update_schedule.cycle=[[evaluator,1],[policy,1]]",
    ],
}
"""What the smoke overlay needs beside it."""
NOTES = {
    "gspo_supervised",
    "gspo_stochastic",
    "dapo_dynamic_clip",
    "dapo_dual_agent",
    "vapo_light_critic",
    "grpo_dynamic_group",
}
"""Described in an interview note only."""
WARM_UP = "sft_warmup"
"""Made the weights of the embedded policy: no algorithm, and another policy class."""


def read(recipe: str) -> dict[str, Any]:
    return yaml.safe_load(catalog.files("recipes")[recipe].read_text())


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


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_slot_is_named_in_one_order(recipe: str) -> None:
    values = read(recipe)
    assert [k for k in values if k not in ("run_name",)] == ["steps", "seed", "model", "data", "trainer"]
    assert [k for k in values["model"] if k in SLOTS] == SLOTS


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_header_says_what_it_is_and_how_to_run_it(recipe: str) -> None:
    text = catalog.files("recipes")[recipe].read_text()
    header = text[: text.index("\nsteps:")].splitlines()
    assert all(line.startswith("# ") for line in header)
    assert header[-1].startswith(f"# lit-group-rl fit {recipe}")
    told = "\n".join(header)
    if recipe not in ("grpo", WARM_UP):
        assert "# Against " in told
    if recipe in NOTES:
        assert "interview note" in told
    elif recipe != WARM_UP:
        assert "arXiv:" in told


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != WARM_UP])
def test_methods_compare_at_one_budget(recipe: str) -> None:
    values, base = read(recipe), read("grpo")
    for number in ("learning_rate", "max_grad_norm", "ppo_epochs"):
        assert values["model"][number] == base["model"][number], number
    assert values["data"]["source"] == base["data"]["source"]
    sampler = options_of(values["model"]["sampler"])
    greedy = class_of(values["model"]["sampler"]) == "GreedyRowSampler"
    assert values["data"]["prompts_per_step"] * (sampler["group_size"] + greedy) == 256


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r not in ("grpo", WARM_UP)])
def test_a_method_is_a_short_difference_from_grpo(recipe: str) -> None:
    values, base = read(recipe)["model"], read("grpo")["model"]
    changed = [slot for slot in SLOTS if values.get(slot) != base[slot]]
    assert 1 <= len(changed) <= 9, changed


def alternatives() -> list[tuple[str, str]]:
    """(recipe, line) of the other modes that recipes name in comments: a slot with its value, as one line of YAML."""
    line = re.compile(rf"^ *# +((?:{'|'.join(SLOTS)}): .*)$", re.MULTILINE)
    return [(r, m[1]) for r in RECIPES for m in line.finditer(catalog.files("recipes")[r].read_text())]


def test_the_notes_have_other_modes() -> None:
    assert {recipe for recipe, _ in alternatives()} >= {"gspo_supervised", "gspo_stochastic", "dapo_dynamic_clip"}


@pytest.mark.parametrize(("recipe", "line"), alternatives())
def test_a_mode_named_in_a_comment_runs(
    recipe: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = tmp_path / "mode.yaml"
    overlay.write_text(yaml.safe_dump({"model": yaml.safe_load(line)}))
    folder = smoke(recipe, tmp_path, monkeypatch, f"--config={overlay}")
    assert max(float(r["optim/update_to_weight"] or 0) for r in rows(folder)) > 0


def test_a_class_name_means_one_class() -> None:
    """Recipes name components without their package, so no two may share a name."""
    names = [n for p in sorted(catalog.PACKAGE.rglob("*.py")) for n in re.findall(r"^class (\w+)", p.read_text(), re.M)]
    twice = {n for n in names if names.count(n) > 1 and not n.startswith("_")}
    assert not {n for n in twice if catalog.slots_of(n)}
