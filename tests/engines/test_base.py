"""What every engine does, with one that is told what to draw."""

from __future__ import annotations

import pytest

from lit_group_rl.engines.base import Completion, RolloutEngine, as_drawn
from lit_group_rl.loss_weights import RolloutIS
from lit_group_rl.rewards import Reward
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt, Recipe
from tests.tiny_runs import fit


class Parrot(RolloutEngine):
    """Says 'ab' and ends; notes what it was asked for."""

    def __init__(self, logp: float = -1.0, missing: int = 0) -> None:
        self.calls: list[object] = []
        self.logp, self.missing = logp, missing

    def start(self, policy):
        self.calls.append("start")

    def update_weights(self, policy):
        self.calls.append("weights")

    def pause(self):
        self.calls.append("pause")

    def generate(self, policy, request):
        self.calls.append(request)
        ids = policy.tokenizer("ab").input_ids
        one = Completion([*ids, policy.tokenizer.eos_token_id], [self.logp] * 3, False)
        return [one] * (len(request.prompts) * request.copies - self.missing)


@pytest.fixture(scope="module")
def policy() -> CharPolicy:
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    return policy


def test_a_rollout_wakes_it_up_gives_it_the_weights_and_lets_it_sleep(policy):
    engine = Parrot()
    sampler = GroupSampler(group_size=2, max_new_tokens=5, temperature=0.7, top_p=0.9, top_k=3, engine=engine)
    batch = sampler.sample(policy, [Prompt("1+1="), Prompt("2+2=")], [0, 1], Clock(0, 1), 1)
    assert [c for c in engine.calls if isinstance(c, str)] == ["start", "weights", "pause"]
    assert engine.calls.index("pause") == 3
    request = engine.calls[2]
    assert [policy.decode([p])[0] for p in request.prompts] == ["1+1=", "2+2="]
    assert (request.copies, request.max_new_tokens, request.temperature) == (2, 5, 0.7)
    assert (request.top_p, request.top_k, len(set(request.keys))) == (0.9, 3, 4)
    assert [s.completion for s in batch.samples] == ["ab"] * 4
    assert batch.behaviour_logp.tolist() == [[-1.0] * 3] * 4


def test_it_sleeps_also_when_something_breaks(policy):
    engine = Parrot(missing=1)
    with pytest.raises(RuntimeError, match="Parrot gave 3 completions, 4 were asked for"):
        GroupSampler(group_size=4, max_new_tokens=5, engine=engine).sample(policy, [Prompt("1=")], [0], Clock(0, 1), 1)
    assert engine.calls[-1] == "pause"


def test_completions_become_padded_tensors():
    drawn = as_drawn([Completion([5, 6, 7], [-1.0, -2.0, -3.0], True), Completion([8], [-4.0], False)], 9, "cpu")
    assert drawn.ids.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert drawn.mask.tolist() == [[True, True, True], [True, False, False]]
    assert drawn.logp.tolist() == [[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]]
    assert drawn.truncated.tolist() == [True, False]
    assert not drawn.exact
    assert drawn.entropy is None


class Turns(Reward):
    """1 and 0 in turn, so that no group is tied."""

    weight = 1.0

    def score(self, samples):
        return [float(i % 2) for i in range(len(samples))]


@pytest.mark.parametrize(
    "weight", [RolloutIS(cap=2.0), RolloutIS(mode="mask", low=0.5, cap=5.0)], ids=["tis", "icepop"]
)
def test_the_mismatch_reaches_the_rollout_weight(weight):
    """An engine that claims probability 1 for all it says: the trainer's log-probs are the whole log weight."""
    module, log = fit(
        steps=1,
        minibatches=1,
        rewards={"turns": Turns()},
        loss_weights={"mismatch": weight},
        sampler=GroupSampler(4, 4, engine=Parrot(0.0)),
    )
    batch = module.last_batch
    # 'ab' and the end under random weights over 58 tokens, so about 1/58 each and far below 0.5
    assert not batch.behaviour_logp.any()
    gap = -batch.old_logp[batch.mask].double()
    assert log[1]["mismatch/kl"] == pytest.approx(float(gap.mean()), rel=1e-4)
    assert log[1]["mismatch/abs_max"] == pytest.approx(float(gap.max()), rel=1e-4)
    assert 2 < log[1]["mismatch/kl"] < 7
    if weight.mode == "mask":
        assert log[1]["mismatch/dropped_frac"] == 1
        assert log[1]["mismatch/weight_mean"] == 0
    else:
        assert log[1]["mismatch/dropped_frac"] == 0
        assert log[1]["mismatch/weight_mean"] == pytest.approx(float((-gap).exp().mean()), rel=1e-3)


def problems(sampler, **parts):
    recipe = Recipe({"sampler": sampler, **parts}, 4, 4, 1)
    return [str(p) for _, part in recipe.components() for p in part.checks(recipe)]


def test_an_engine_without_a_correction_is_told():
    (told,) = problems(GroupSampler(engine=Parrot()))
    assert told.startswith("model.sampler.engine: its probabilities are not quite those that are trained")
    assert "RolloutIS" in told
    assert problems(GroupSampler(engine=Parrot()), loss_weights={"tis": RolloutIS()}) == []


def test_noise_on_the_logits_is_refused_with_an_engine():
    sampler = GroupSampler(engine=Parrot(), logit_noise=0.5)
    (told,) = problems(sampler, loss_weights={"tis": RolloutIS()})
    assert told.startswith("model.sampler.logit_noise: Parrot cannot shift the logits")


def test_an_engine_makes_the_trainer_compute_the_old_log_probs():
    assert Recipe({"sampler": GroupSampler(engine=Parrot())}, 4, 4, 1).needs("old_logp") == ["sampler.engine"]
    module, _ = fit(steps=1, minibatches=1, sampler=GroupSampler(4, 4, engine=Parrot()))
    assert module.last_batch.old_logp is not None
