"""Every recipe, asked to stop after its first and again after its second step, ends bit-identical to a whole run."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path

import pytest
import torch

from lit_group_rl import checkpoint
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.cli import catalog, run, run_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OWN = ("time/", "perf/")
WARM_UP = "sft_warmup"


def fit(recipe: str, root: Path, *options: str) -> int:
    overlay = [] if recipe == WARM_UP else ["--config=scale/smoke"]
    return run.fit([recipe, *overlay, f"--run_root={root}", "--steps=3", "--trainer.accelerator=cpu", *options])


def rows(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "metrics.csv").open() as lines:
        return {r["step"]: {k: v for k, v in r.items() if not k.startswith(OWN)} for r in csv.DictReader(lines)}


def assert_equal(one: object, two: object, where: str) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, two), where
    elif isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_equal(one[key], two[key], f"{where} {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(two), where
        for i, pair in enumerate(zip(one, two, strict=True)):
            assert_equal(*pair, f"{where} {i}")
    else:
        assert one == two or (one != one and two != two), where


@pytest.mark.parametrize("recipe", sorted(catalog.files("recipes")))
def test_a_run_that_was_stopped_twice_is_the_unbroken_one(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_folder.ENVIRONMENT, "")
    assert fit(recipe, tmp_path / "whole") == 0

    stop_after = [1, 2]
    after_metrics = CheckpointCallback.on_metrics

    def stopping(self, trainer, module, step, metrics):
        after_metrics(self, trainer, module, step, metrics)
        if stop_after and step == stop_after[0]:
            stop_after.pop(0)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(CheckpointCallback, "on_metrics", stopping)
    broken = tmp_path / "broken" / recipe / "0001"
    assert fit(recipe, tmp_path / "broken") == 143
    assert checkpoint.newest(broken).state["rl_step"] == 1
    assert fit(recipe, tmp_path / "broken", f"--resume={broken}") == 143
    assert fit(recipe, tmp_path / "broken", f"--resume={broken}") == 0
    assert not stop_after

    whole = tmp_path / "whole" / recipe / "0001"
    expected, found = checkpoint.newest(whole), checkpoint.newest(broken)
    assert found.state["rl_step"] == 3
    assert_equal(expected.weights, found.weights, "weights")
    # where the best was seen is the callback's, and one of the runs is saved more often
    for part in ("optimizer", "module", "data", "reference"):
        assert_equal(expected.state[part], found.state[part], part)
    assert rows(whole) == rows(broken)
