"""The loop: what one RL step promises, tried on tiny complete runs."""

import math

import pytest
import torch

from lit_group_rl import parallel
from lit_group_rl.advantages import LightCriticBaseline
from lit_group_rl.aggregators import TokenMean
from lit_group_rl.aux_losses import KL, Entropy
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.critics import LightCritic
from lit_group_rl.data import Addition, PromptData
from lit_group_rl.evaluation import HeldOut
from lit_group_rl.filters import MixedOutcome
from lit_group_rl.module import LitGroupRL
from lit_group_rl.rewards.base import Reward
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Linear
from lit_group_rl.surrogates import Clipped
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import RecipeError
from tests.tiny_runs import Digits, digest, fit, recipe, weights


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


@pytest.mark.parametrize("aggregator", [TokenMean(), recipe()["aggregator"]], ids=["token_mean", "sequence_mean"])
def test_the_size_of_micro_batches_changes_nothing(aggregator):
    """Known fault B13, on the whole loop: one micro-batch, or about one row in each."""
    parts = {"aggregator": aggregator, "aux_losses": {"kl": KL(), "entropy": Entropy(0.01)}, "steps": 3}
    one, log_one = fit(micro_batch_tokens=10**6, **parts)
    many, log_many = fit(micro_batch_tokens=16, **parts)
    torch.testing.assert_close(weights(one), weights(many), atol=2e-6, rtol=0)
    for step in (1, 2, 3):
        for tag in ("loss/total", "loss/kl", "optim/grad_norm", "reward/mean", "policy/ratio_mean"):
            assert log_one[step][tag] == pytest.approx(log_many[step][tag], abs=1e-5), (step, tag)


class Watching(Surrogate):
    """Clipped, remembering ratios and old log-probs of each update."""

    def __init__(self):
        self.ratios, self.old = [], []

    def loss(self, ctx, bounds):
        self.ratios.append(ctx.ratio.detach()[ctx.mask])
        self.old.append(ctx.batch.old_logp)
        return Clipped().loss(ctx, bounds)


def test_the_ratio_is_one_at_first_and_moves_later():
    """Known fault B16: the old log-probs are those of the rollout in both passes."""
    watch = Watching()
    fit(surrogate=watch, ppo_epochs=2, minibatches=1, learning_rate=0.05, steps=1)
    first, second = watch.ratios
    torch.testing.assert_close(first, torch.ones_like(first), atol=5e-6, rtol=0)
    assert (second - 1).abs().max() > 0.01
    assert torch.equal(watch.old[0], watch.old[1])


def test_with_one_update_per_rollout_the_ratio_is_exactly_one_and_clipping_is_not_logged():
    watch = Watching()
    _, log = fit(surrogate=watch, minibatches=1, steps=1)
    assert (watch.ratios[0] == 1).all()
    assert "policy/clip_frac" not in log[1]
    assert "policy/clip_frac" in fit(steps=1)[1][1]


def test_kl_is_zero_at_the_first_step_and_the_reference_stays():
    module, log = fit(aux_losses={"kl": KL()}, minibatches=1, learning_rate=0.01, steps=3)
    assert log[1]["loss/kl"] == pytest.approx(0.0, abs=1e-7)
    assert log[3]["loss/kl"] > 1e-4
    assert not any(p.requires_grad for p in module.policy.reference.parameters())


def test_kl_pulls_back_to_the_reference():
    """Known fault B19: with no other signal and a policy moved away, the divergence falls."""

    class Flat(Reward):
        weight, solved_at = 1.0, 1.0

        def score(self, samples):
            return [0.5] * len(samples)

    class Moved(CharPolicy):
        def add_reference(self):
            super().add_reference()
            with torch.no_grad():
                generator = torch.Generator().manual_seed(0)
                for p in self.net.parameters():
                    p.add_(2.0 * p.std() * torch.randn(p.shape, generator=generator))

    moved = Moved(hidden_size=32, layers=1, heads=2, context_tokens=32)
    _, log = fit(policy=moved, rewards={"flat": Flat()}, aux_losses={"kl": KL(1.0)}, learning_rate=3e-3, steps=12)
    first, last = (sum(log[s]["loss/kl"] for s in steps) for steps in ((1, 2), (11, 12)))
    assert last < 0.6 * first


def test_equal_rewards_change_nothing_at_all():
    """No gradient, so no step: not even weight decay or momentum may move the weights."""

    class Same(Digits):
        def score(self, samples):
            return [0.7] * len(samples)

    decaying = lambda parameters: torch.optim.AdamW(parameters, weight_decay=0.5)  # noqa: E731
    module, log = fit(rewards={"same": Same()}, optimizer=decaying)
    fresh = LitGroupRL(**recipe())
    fresh.policy.load()
    assert torch.equal(weights(module), weights(fresh))
    assert log[2]["optim/skipped_total"] == 4
    assert log[2]["group/zero_std_frac"] == 1.0


def test_rows_without_gradient_are_left_out_without_effect():
    """Half of the groups are tied; the forward sees the others only, normalisers count all."""

    class HalfTied(Digits):
        def score(self, samples):
            scores = super().score(samples)
            return [0.3 if (i // 4) % 2 else x for i, x in enumerate(scores)]

    class All(Clipped):
        zero_without_advantage = False
        rows = 0

        def loss(self, ctx, bounds):
            All.rows += len(ctx.batch)
            return super().loss(ctx, bounds)

    class Some(All):
        zero_without_advantage = True

    parts = {"rewards": {"half": HalfTied()}, "aggregator": TokenMean(), "steps": 2}
    every, log_every = fit(surrogate=All(), **parts)
    seen, All.rows = All.rows, 0
    some, log_some = fit(surrogate=Some(), **parts)
    assert 0 < All.rows <= seen // 2
    torch.testing.assert_close(weights(every), weights(some), atol=1e-6, rtol=0)
    for tag in ("loss/policy", "optim/grad_norm", "policy/clip_frac"):
        assert log_every[2][tag] == pytest.approx(log_some[2][tag], abs=1e-6)


def test_a_loss_that_is_not_finite_skips_its_update_only():
    class Breaks(Surrogate):
        def __init__(self):
            self.calls = 0

        def loss(self, ctx, bounds):
            self.calls += 1
            return Clipped().loss(ctx, bounds) * (math.nan if self.calls == 2 else 1.0)

    module, log = fit(surrogate=Breaks())
    assert torch.isfinite(weights(module)).all()
    assert log[1]["optim/skipped_total"] == 1
    assert log[2]["optim/skipped_total"] == 1
    assert log[2]["progress/updates"] == 4


def test_gradients_are_scaled_down_to_the_norm():
    """Known fault B60: under SGD with rate 1 the weights of one update move by the clipped norm."""
    fresh = LitGroupRL(**recipe())
    fresh.policy.load()
    module, log = fit(minibatches=1, optimizer=sgd, learning_rate=0.1, max_grad_norm=0.01, steps=1)
    assert log[1]["optim/grad_norm"] > 0.01
    moved = (weights(module) - weights(fresh)).norm()
    assert float(moved) == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_dynamic_sampling_stops_at_its_rounds_and_keeps_what_it_has():
    """Known faults B26, B27."""

    class Hopeless(Digits):
        calls = 0

        def score(self, samples):
            Hopeless.calls += 1
            return [0.0] * len(samples)

    module, log = fit(rewards={"hopeless": Hopeless()}, filter=MixedOutcome(max_rounds=3), steps=1)
    assert Hopeless.calls == 3
    assert log[1]["progress/completions"] == 3 * 4 * 4
    assert log[1]["group/used_frac"] == 0.0
    assert module.rl_step == 1

    class FirstGroupMixed(Digits):
        def score(self, samples):
            return [float(i == 0) for i in range(len(samples))]

    module, log = fit(rewards={"one": FirstGroupMixed()}, filter=MixedOutcome(max_rounds=2), steps=1)
    assert len(module.last_batch.group_ids.unique()) == 2  # one of each round, none thrown away
    assert log[1]["group/used_frac"] == pytest.approx(2 / 7)  # 4 prompts, then 3 for the missing


def test_evaluation_comes_at_both_ends_and_changes_nothing_in_training():
    """Known fault B70."""
    without, _ = fit(steps=3)
    seen, log = fit(heldout=HeldOut(every=2, samples=4), steps=3)
    assert digest(without) == digest(seen)
    assert [s for s in log if "eval/heldout/accuracy" in log[s]] == [0, 2, 3]
    assert {"eval/heldout/mean_at_4", "eval/heldout/pass_at_1", "eval/heldout/pass_at_4"} <= log[0].keys()
    assert log[0]["eval/heldout/pass_at_1"] == pytest.approx(log[0]["eval/heldout/mean_at_4"])


def test_schedules_follow_rl_steps():
    _, log = fit(learning_rate=Linear(1e-3, 0.0), steps=2)
    assert [log[s]["optim/lr"] for s in (1, 2)] == [1e-3, 5e-4]
    assert log[1]["schedule/learning_rate"] == 5e-4  # the value that the next step will use


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_resumed_run_is_bit_identical(tmp_path, at):
    parts = {"aux_losses": {"kl": KL(Linear(0.1, 0.0))}, "learning_rate": Linear(1e-3, 1e-4)}
    parts |= {"filter": MixedOutcome(max_rounds=2), "heldout": HeldOut(every=2)}
    unbroken, expected = fit(steps=4, **parts)

    class Stop(Exception):
        pass

    class StopAt(CheckpointCallback):
        def on_train_batch_end(self, trainer, module, *args):
            if module.rl_step == at:
                raise Stop

    with pytest.raises(Stop):
        fit(steps=4, callbacks=[StopAt(tmp_path, every=1)], **parts)
    torch.rand(7)
    resumed, log = fit(resume_from=tmp_path, steps=4, callbacks=[CheckpointCallback(tmp_path, every=1)], **parts)
    assert digest(resumed) == digest(unbroken)
    timed = ("time/", "perf/")
    for step in range(at + 1, 5):
        assert {k: v for k, v in log[step].items() if not k.startswith(timed)} == {
            k: v for k, v in expected[step].items() if not k.startswith(timed)
        }


def test_a_finished_run_can_be_extended(tmp_path):
    unbroken, _ = fit(steps=4)
    fit(steps=2, callbacks=[CheckpointCallback(tmp_path, every=1)])
    again, log = fit(steps=2, resume_from=tmp_path)
    assert again.rl_step == 2
    assert not log  # nothing left to do, and nothing done
    longer, _ = fit(steps=4, resume_from=tmp_path)
    assert digest(longer) == digest(unbroken)


def test_a_model_without_trainable_parameters_is_refused():
    """Known fault B57."""

    class Frozen(CharPolicy):
        def load(self):
            super().load()
            self.net.requires_grad_(False)

    with pytest.raises(RecipeError, match="no parameter is trainable"):
        fit(policy=Frozen(hidden_size=32, layers=1, heads=2, context_tokens=32))


@pytest.mark.parametrize(
    ("option", "value"),
    [("learning_rate", math.nan), ("max_grad_norm", 0.0), ("minibatches", 0), ("steps", 0), ("rewards", {})],
)
def test_bad_numbers_are_refused_when_the_module_is_built(option, value):
    with pytest.raises(ValueError, match=option):
        LitGroupRL(**recipe(**{option: value}))


def test_more_minibatches_than_prompts_is_a_problem():
    found = LitGroupRL(**recipe(minibatches=5)).problems(4)
    assert [p.field for p in found if not p.warning] == ["model.minibatches"]


def test_a_component_that_raises_stop_iteration_does_not_end_the_run_silently():
    class Ends(GroupSampler):
        def sample(self, *args):
            raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        fit(sampler=Ends(group_size=2, max_new_tokens=2))


def test_the_same_seed_gives_the_same_run_and_another_gives_another():
    assert digest(fit()[0]) == digest(fit()[0])
    data = PromptData(Addition(level=1), prompts_per_step=4, heldout_size=8, seed=1)
    assert digest(fit(seed=2, data=data)[0]) != digest(fit()[0])


def test_the_steps_of_a_run_with_two_models_are_counted_once():
    """Known fault B58: a second optimizer would let Lightning's own counter run twice as fast."""
    watch, steps = Watching(), 3
    module, log = fit(
        surrogate=watch, critic=LightCritic(), advantage=LightCriticBaseline(), minibatches=2, ppo_epochs=2, steps=steps
    )
    assert sorted(log) == [1, 2, 3]
    assert module.rl_step == steps
    assert len(watch.ratios) == log[steps]["progress/updates"] == steps * 4


@pytest.mark.parametrize(("small", "environment", "threads"), [(10**6, None, 1), (10**6, "2", 2), (1, None, 2)])
def test_a_small_model_runs_in_one_thread_unless_told_otherwise(monkeypatch, small, environment, threads):
    monkeypatch.setattr(parallel, "SMALL_MODEL", small)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if environment:
        monkeypatch.setenv("OMP_NUM_THREADS", environment)
    found = []

    class Count(RunCallback):
        def on_metrics(self, trainer, module, step, metrics):
            found.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit(callbacks=[Count()])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(found) == {threads}
