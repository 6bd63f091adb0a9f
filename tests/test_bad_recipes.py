"""Combinations that contradict themselves are refused before the first step, those without effect are warned about."""

from __future__ import annotations

import pytest
import torch

from lit_group_rl.advantages import GroupRelative
from lit_group_rl.aggregators import SequenceMean
from lit_group_rl.batching import microbatches
from lit_group_rl.cli import catalog
from lit_group_rl.cli.lightning_cli import build
from lit_group_rl.cli.main import main
from lit_group_rl.cli.run import prepare
from lit_group_rl.clip_policies import NoClip
from lit_group_rl.surrogates import GroupClassification
from lit_group_rl.types import Problem
from tests.builders import make_batch
from tests.tiny_runs import fit, weights

REFUSED = [
    # (recipe and changes, field, what the message says, what the fix says)
    ("grpo --model.advantage=GAE", "model.critic", "GAE reads the values of a critic", "Set critic to LightCritic"),
    ("vapo --model.critic=null", "model.critic", "the recipe has none", "an advantage without one"),
    ("grpo --model.critic=LightCritic", "model.critic", "no part of the recipe reads its values", "Set critic to null"),
    ("ppo --model.filter=MixedOutcome", "model.filter", "score alike", "Set it to null"),
    ("ppo --model.filter=ValidShare", "model.filter", "score alike", "Set it to null"),
    (
        "ppo --model.rewards.agree=GroupRougeL",
        "model.sampler.group_size",
        "GroupRougeL compares",
        "model.rewards.agree",
    ),
    ("remax --model.sampler=GroupSampler", "model.sampler", "greedy completion", "GreedyRowSampler"),
    ("pass_at_k --model.advantage.k=9", "model.advantage.k", "subsets of 9", "Lower k"),
    ("gdpo --model.advantage.weights.style=1", "model.advantage.weights.style", "no reward of this name", "Use one of"),
    ("gspo_supervised --model.rewards.agreement=null", "model.aux_losses", "no reward named 'agreement'", "Use one of"),
    ("grpo --model.rewards.exact.weight=0", "model.rewards", "all weights are 0", "Give at least one reward a weight"),
    (
        "dapo_dual_agent --model.evaluator.label_rate=0",
        "model.evaluator.label_rate",
        "nothing to learn from",
        "Raise it",
    ),
    ("dapo_dual_agent --model.evaluator=null", "model.evaluator", "the recipe has none", "DualAgent"),
    ("grpo --model.minibatches=64", "model.minibatches", "cannot be cut from 32 prompts", "Lower it to 32"),
]
NEED_A_GROUP = ("grpo", "dr_grpo", "gdpo", "lite_ppo", "maxrl", "opo", "pass_at_k", "reinforce_pp_baseline", "rloo")

WARNED = [
    ("grpo --model.minibatches=1", "model.clip_policy", "the ratio is 1 and clipping has no effect", "minibatches"),
    ("grpo --model.surrogate=Unclipped", "model.clip_policy", "Unclipped does not read bounds", "NoClip"),
    ("sapo --model.minibatches=1", "model.surrogate", "SoftGate is plain policy gradient", "minibatches"),
    ("vespo --model.minibatches=1", "model.surrogate", "GammaWeight is plain policy gradient", "minibatches"),
    ("rloo --model.minibatches=2", "model.surrogate", "stale completions", "Set model.minibatches"),
    ("kl_cov --model.minibatches=1", "model.aux_losses.kl_cov", "KLCov has no gradient", "null"),
    ("rloo --model.loss_weights.w=FutureKL", "model.loss_weights.w", "every weight of FutureKL is 1", "null"),
    ("grpo --model.aux_losses.kl.coef=0", "model.aux_losses.kl.coef", "leaves it out of the loss", "null"),
    ("grpo --model.aux_losses.sft=ExpertNLL", "model.aux_losses.sft", "the sampler gives none", "expert rows"),
    ("grpo --model.surrogate=OffPolicyShape", "model.surrogate", "the sampler gives none", "Clipped"),
    ("vapo --steps=20", "model.update_schedule", "never learns within 20 steps", "Raise steps"),
    ("pass_at_k --model.advantage.k=8", "model.advantage.k", "every advantage is 0", "Lower k"),
]


def problems(line: str) -> list[Problem]:
    cli = build(prepare(line.split()))
    return cli.model.problems(cli.datamodule.prompts_per_step)


@pytest.mark.parametrize("recipe", sorted(catalog.files("recipes")))
def test_a_shipped_recipe_has_none(recipe: str) -> None:
    assert problems(recipe) == []


@pytest.mark.parametrize(("line", "field", "what", "fix"), REFUSED, ids=[row[0] for row in REFUSED])
def test_contradictions_are_refused_with_the_fix(line: str, field: str, what: str, fix: str) -> None:
    found = [p for p in problems(line) if not p.warning and p.field == field]
    assert any(what in p.message and fix in p.fix for p in found), found


@pytest.mark.parametrize("recipe", NEED_A_GROUP)
def test_an_estimator_that_compares_members_refuses_a_group_of_one(recipe: str) -> None:
    found = [p for p in problems(f"{recipe} --model.sampler.group_size=1") if not p.warning]
    assert any(p.field == "model.sampler.group_size" and "at least 2, got 1" in p.message for p in found), found


@pytest.mark.parametrize(("line", "field", "what", "fix"), WARNED, ids=[row[0] for row in WARNED])
def test_settings_without_effect_are_warned_about(line: str, field: str, what: str, fix: str) -> None:
    found = problems(line)
    assert any(p.warning and p.field == field and what in p.message and fix in p.fix for p in found), found
    assert [p for p in found if not p.warning] == []


@pytest.mark.parametrize(("line", "field", "what", "fix"), REFUSED[:3], ids=[row[0] for row in REFUSED[:3]])
def test_the_command_refuses_before_anything_is_written(line, field, what, fix, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", *line.split()]) == 2
    error = capsys.readouterr().err
    assert [word for word in ("error: ", field, what, fix) if word not in error] == []
    assert list(tmp_path.iterdir()) == []


def test_the_command_warns_and_goes_on(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    line = "fit grpo scale/smoke --steps=1 --model.minibatches=1 --trainer.accelerator=cpu"
    assert main(line.split()) == 0
    assert "warning: model.clip_policy: with one update per rollout" in capsys.readouterr().err
    assert (tmp_path / "runs/grpo/0001/metrics.csv").is_file()


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_micro_batches_do_not_cut_groups_when_asked(limit: int) -> None:
    batch = make_batch([[1, 1, 1]] * 7, group_ids=[5, 3, 5, 3, 3, 9, 5])
    packs = microbatches(batch, limit, whole_groups=True)
    assert sorted(i for pack in packs for i in pack.tolist()) == list(range(7))
    groups = [set(batch.group_ids[pack].tolist()) for pack in packs]
    assert sum(map(len, groups)) == 3  # no group stands in two
    assert limit > 5 or len(packs) == 3


def test_a_surrogate_that_compares_members_gets_them_whatever_fits_in_memory() -> None:
    parts = {
        "advantage": GroupRelative(),
        "surrogate": GroupClassification(),
        "clip_policy": NoClip(),
        "aggregator": SequenceMean(),
        "minibatches": 1,
    }
    small, large = (weights(fit(**parts, micro_batch_tokens=n)[0]) for n in (1, 10_000))
    torch.testing.assert_close(small, large, rtol=1e-4, atol=1e-6)
    start = weights(fit(**parts, learning_rate=0.0)[0])
    assert (large - start).abs().max() > 1e-4
