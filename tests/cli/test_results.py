"""The table of all recipes: what a run leaves, what is made again, where the table stands."""

from __future__ import annotations

import json
import math

import pytest

from lit_group_rl.cli import results


def test_recipes_of_the_embedded_policy_are_trained_and_its_own_warm_up_is_not():
    found = results.embedded()
    assert {"grpo", "dapo_dual_agent", "vapo"} <= set(found)
    assert "sft_warmup" not in found


def test_start_and_end_are_the_first_and_last_evaluation():
    rows = {
        0: {"eval/heldout/accuracy": 0.25},
        1: {"loss/total": 0.1, "optim/grad_norm": 2.0},
        2: {"loss/total": 0.1, "optim/grad_norm": 2.0, "eval/heldout/accuracy": 0.5, "length/correct": math.nan},
        3: {"loss/total": 0.2, "optim/grad_norm": 1.0},
    }
    assert results.outcome(rows) == {"start": 0.25, "end": 0.5, "last_step": 3, "finite": True}
    rows[3]["optim/grad_norm"] = math.inf
    assert not results.outcome(rows)["finite"]


def record(recipe: str, start: float, end: float, seconds: float, finite: bool = True) -> dict:
    return {"recipe": recipe, "start": start, "end": end, "seconds_per_step": seconds, "finite": finite}


def test_a_row_has_mean_and_deviation_over_seeds():
    text = results.table([record("b", 0.2, 0.6, 1.0), record("b", 0.2, 0.8, 2.0), record("a", 0.5, 0.4, 1.0, False)], 9)
    # 60 and 80: mean 70, deviation sqrt((100 + 100) / 1) = 14.1; the smaller gain is 40
    assert text.splitlines()[-2:] == [
        "| `a` | 1 | 50.0 % | 40.0 % | -10.0 | 1.00 | **no** |",
        "| `b` | 2 | 20.0 ± 0.0 % | 70.0 ± 14.1 % | +40.0 | 1.50 | yes |",
    ]


def test_only_what_stands_between_the_markers_is_replaced(tmp_path):
    path = tmp_path / "results.md"
    path.write_text("# Results\n\nMine.\n")
    results.put("first", path)
    path.write_text(path.read_text() + "\n## After\n")
    results.put("second", path)
    text = path.read_text()
    assert text.startswith("# Results\n\nMine.\n\n## Every recipe\n")
    assert f"{results.BEGIN}\nsecond\n{results.END}\n\n## After\n" in text
    assert "first" not in text


def test_a_finished_run_is_not_made_again_and_a_failed_one_is(tmp_path, monkeypatch):
    made = []

    def train(root, recipe, seed, steps):
        made.append((recipe, seed))
        done = record(recipe, 0.2, 0.4, 1.0) | {"last_step": 2, "error": "broke" if recipe == "ppo" else None}
        results.record_of(tmp_path, recipe, seed, steps).write_text(json.dumps(done))

    def train_all(root, missing, steps, workers):
        for recipe, seed in missing:
            train(root, recipe, seed, steps)
        return 0

    monkeypatch.setattr(results, "_train_all", train_all)
    line = ["grpo", "ppo", "--steps=2", "--seeds=2", f"--runs={tmp_path}", f"--table={tmp_path / 'table.md'}"]
    assert results.main(line) == 0
    assert made == [("grpo", 1), ("ppo", 1), ("grpo", 2), ("ppo", 2)]
    made.clear()
    results.main(line)
    assert made == [("ppo", 1), ("ppo", 2)]
    assert "| `grpo` | 2 |" in (tmp_path / "table.md").read_text()
    assert "ppo" not in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_a_run_leaves_its_record(tmp_path):
    done = results.train(str(tmp_path), "grpo", 1, 1)
    assert done["error"] is None
    assert done["finite"]
    assert 0 < done["seconds_per_step"] < 100
    assert results.load(tmp_path, "grpo", 1, 1) == done
    # a recipe that cannot be built ends its own run only
    assert "nope" in results.train(str(tmp_path), "nope", 1, 1)["error"]
    assert results.load(tmp_path, "nope", 1, 1) is None
