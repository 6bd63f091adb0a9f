"""Faults that users of other trainers reported, tried on whole runs; those of single components stand with these."""

import math
from types import SimpleNamespace

import pytest
import yaml

from lit_group_rl.aux_losses import KL
from lit_group_rl.callbacks import default_callbacks
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.cli import run
from lit_group_rl.cli.compose import compose
from lit_group_rl.cli.main import main
from lit_group_rl.data import PromptData
from lit_group_rl.data.base import PromptSource
from lit_group_rl.evaluation import HeldOut
from lit_group_rl.filters import MixedOutcome
from lit_group_rl.rewards import KLPenalty, SoftOverlong
from lit_group_rl.rewards.base import Reward
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt
from tests.tiny_runs import Digits, digest, fit


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
def test_every_estimator_of_the_divergence_runs_and_starts_at_zero(estimator):
    """Known faults B21, B23: in the loss and, where it is offered, in the reward."""
    shapers = {"kl": KLPenalty(0.1, estimator)} if "+" not in estimator else None
    module, log = fit(aux_losses={"kl": KL(0.1, estimator)}, shapers=shapers, minibatches=1, steps=2)
    assert log[1]["loss/kl"] == pytest.approx(0, abs=1e-6)
    assert math.isfinite(log[2]["loss/total"])
    assert module.rl_step == 2


def test_groups_are_filtered_on_the_reward_not_on_its_shaping():
    """Known fault B25: lengths differ, but all are equally wrong."""

    class Wrong(Reward):
        def score(self, samples):
            return [0.0] * len(samples)

    _, log = fit(
        rewards={"wrong": Wrong()}, filter=MixedOutcome(max_rounds=1), shapers={"long": SoftOverlong(buffer=4)}, steps=1
    )
    assert log[1]["group/used_frac"] == 0


def test_temperature_zero_is_refused_for_training_and_is_greedy_for_evaluation(capsys):
    """Known fault B36."""
    assert main(["fit", "grpo", "--model.sampler.temperature=0"]) == 2
    assert "temperature" in capsys.readouterr().err
    with pytest.raises(ValueError, match="temperature must be above 0"):
        HeldOut(samples=2, temperature=0.0)
    _, log = fit(heldout=HeldOut(every=1), steps=1)
    assert math.isfinite(log[1]["eval/heldout/reward"])
    # training is not touched by the greedy pass
    assert fit(steps=1)[1][1]["reward/mean"] == log[1]["reward/mean"]


def test_the_tokenizers_padding_side_is_neither_used_nor_changed():
    """Known fault B42: through rollouts, updates and evaluations."""

    class RightPadded(CharPolicy):
        def load(self):
            super().load()
            self.tokenizer.padding_side = "right"

    sizes = {"hidden_size": 32, "layers": 1, "heads": 2, "context_tokens": 32}
    left, _ = fit(heldout=HeldOut(every=1))
    right, _ = fit(heldout=HeldOut(every=1), policy=RightPadded(**sizes))
    assert (left.policy.tokenizer.padding_side, right.policy.tokenizer.padding_side) == ("left", "right")
    assert digest(left) == digest(right)
    fresh = CharPolicy(**sizes)
    fresh.load()
    assert right.policy.model.generation_config.to_dict() == fresh.model.generation_config.to_dict()
    assert right.policy.pad_id == fresh.pad_id


class Eight(PromptSource):
    """8 prompts: with 4 per step the stream begins a new pass after 2 RL steps."""

    def load(self, heldout_size):
        prompts = [Prompt(f"{a}+{b}=", str(a + b)) for a in range(4) for b in range(4)]
        return prompts[:8], prompts[8 : 8 + heldout_size]


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_run_goes_on_from_the_exact_end_of_a_pass(tmp_path, stopped):
    """Known fault B55."""

    def data():
        return PromptData(Eight(), prompts_per_step=4, heldout_size=8, seed=1)

    fit(steps=stopped, data=data(), callbacks=[CheckpointCallback(str(tmp_path), every=stopped)])
    resumed, log = fit(steps=4, data=data(), resume_from=tmp_path)
    assert sorted(log) == list(range(stopped + 1, 5))
    assert resumed.rl_step == 4
    assert digest(resumed) == digest(fit(steps=4, data=data())[0])


def test_the_best_checkpoint_is_that_of_the_held_out_accuracy(tmp_path, monkeypatch):
    """Known fault B63: not of the loss, and never one whose accuracy is not a number."""
    saved = []
    monkeypatch.setattr(
        CheckpointCallback, "_save", lambda self, module, *state, best: saved.append((module.rl_step, best))
    )
    monkeypatch.setattr("lit_group_rl.checkpoint.plain_state", lambda module: {}, raising=False)
    callback = CheckpointCallback(str(tmp_path), every=1)
    measured = [(0.2, 0.3), (0.8, 0.2), (math.nan, 0.15), (0.5, 0.1)]
    for step, (accuracy, loss) in enumerate(measured, 1):
        metrics = {"eval/heldout/accuracy": accuracy, "loss/total": loss}
        callback.on_metrics(None, SimpleNamespace(rl_step=step, steps=4), step, metrics)
    assert saved == [(1, True), (2, True), (3, False), (4, False)]
    assert (callback.best, callback.best_step) == (0.8, 2)


def test_a_callback_that_is_added_leaves_the_others(tmp_path, monkeypatch):
    """Known fault B65."""
    from lit_group_rl.cli.lightning_cli import build

    (tmp_path / "more.yaml").write_text("trainer: {callbacks: [{class_path: lightning.pytorch.callbacks.Timer}]}\n")
    option = "--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping"
    cli = build(run.prepare(["grpo", str(tmp_path / "more.yaml"), option, "--trainer.callbacks.monitor=x"]))
    trainer = cli.make_trainer(tmp_path, [], default_callbacks(tmp_path, "grpo"))
    names = {type(c).__name__ for c in trainer.callbacks}
    ours = {type(c).__name__ for c in default_callbacks(tmp_path, "grpo")}
    assert {"Timer", "EarlyStopping"} | ours <= names


@pytest.mark.parametrize("words", [["--model.learning_rate=0.5", "{file}"], ["{file}", "--model.learning_rate=0.5"]])
def test_an_option_acts_after_all_files_wherever_it_stands(tmp_path, words):
    """Known fault B67: the later file wins over the earlier one, an option over both."""
    from lit_group_rl.cli.lightning_cli import parse

    (tmp_path / "slow.yaml").write_text("model: {learning_rate: 1.0e-3}\n")
    file = str(tmp_path / "slow.yaml")
    assert compose(["grpo", file]).at("model.learning_rate") == 1e-3
    given = ["grpo", *(word.format(file=file) for word in words)]
    cli = parse(run.prepare(given))
    assert cli.config.model.learning_rate == 0.5
    # and that is what is saved with the run
    assert yaml.safe_load(cli.resolved_yaml())["model"]["learning_rate"] == 0.5


def test_digits_reward_has_spread_in_these_runs():
    # the runs above prove nothing if their groups are tied
    _, log = fit(rewards={"digits": Digits()}, steps=1)
    assert log[1]["group/zero_std_frac"] < 0.5
