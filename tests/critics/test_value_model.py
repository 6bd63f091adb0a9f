"""The full critic of PPO, VC-PPO and VAPO."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lit_group_rl.advantages import GAE, GroupRelative
from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.critics import ValueModel
from lit_group_rl.critics.backbone import prefix_states
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Advantages, RecipeError
from lit_group_rl.update_schedules import CriticWarmUp
from tests.builders import make_batch
from tests.tiny_runs import Digits, digest, fit, weights


class Positions(nn.Module):
    """Its state is the position of the token it has just read."""

    config = SimpleNamespace(hidden_size=1)

    def forward(self, input_ids, attention_mask, position_ids, use_cache):
        return SimpleNamespace(last_hidden_state=position_ids[..., None].float())


@pytest.mark.parametrize("pads", [0, 2])
def test_the_value_of_a_token_is_that_of_the_state_before_it(pads):
    """Known fault B32: a prompt of 3 tokens has positions 0 to 2, and 2 predicts the first completion token."""
    batch = make_batch([[1, 1, 1], [1, 1, 0]])
    batch.prompt_ids = torch.ones(2, 3 + pads, dtype=torch.long)
    batch.prompt_mask = torch.tensor([[False] * pads + [True] * 3, [False] * (pads + 1) + [True] * 2])
    critic = ValueModel()
    critic.body, critic.head = Positions(), nn.Linear(1, 1)
    nn.init.ones_(critic.head.weight)
    nn.init.zeros_(critic.head.bias)
    critic.annotate(batch, None)
    assert batch.values.tolist() == [[2, 3, 4], [1, 2, 0]]


def test_what_the_critic_says_at_padding_is_never_read():
    """Known fault B31: 50 at the padded slot must not become the next value of the last token."""
    batch = make_batch([[1, 1, 0]], scores=[1.0], values=[[0.2, 0.4, 50.0]])
    result = GAE(gamma=1.0, lam=0.9).estimate(batch)
    # delta = [0 + 0.4 - 0.2, 1 - 0.4]; A = [0.2 + 0.9 * 0.6, 0.6]
    assert result.values[0].tolist() == pytest.approx([0.74, 0.6, 0.0])
    assert result.returns[0].tolist() == pytest.approx([0.94, 1.0, 0.0])


def test_states_of_a_copied_body_are_those_of_the_policy():
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    critic = ValueModel()
    critic.build(policy)
    batch = make_batch([[1, 1, 1], [1, 1, 0]])
    batch.completion_ids = torch.tensor([[5, 9, 1], [7, 1, 0]])
    arguments = batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask
    ours = prefix_states(critic.body, *arguments)
    theirs = policy.score(batch, hidden=True).hidden
    torch.testing.assert_close(ours[batch.completion_mask], theirs[batch.completion_mask])
    assert not {p.data_ptr() for p in critic.parameters()} & {p.data_ptr() for p in policy.parameters()}


class Watch(RunCallback):
    """The policy's weights after every step."""

    def __init__(self):
        self.weights = {}

    def on_metrics(self, trainer, module, step, metrics):
        self.weights[step] = weights(module)


class Constant(Digits):
    """Every completion is worth 1: no group has a preference, but there is a return to learn."""

    def score(self, samples):
        return [1.0] * len(samples)


class WithTargets(GroupRelative):
    """GRPO's advantages, here all zero, and a critic's targets."""

    needs = frozenset({"values"})

    def estimate(self, batch):
        return Advantages(super().estimate(batch).values, torch.where(batch.mask, 1.0, 0.0))


@pytest.mark.parametrize(("trunk", "moves"), [("own", False), ("detached", False), ("joint", True)])
def test_only_a_joint_trunk_lets_the_critic_move_the_policy(trunk, moves):
    watch = Watch()
    critic = ValueModel(trunk=trunk, learning_rate=1e-2)
    _, log = fit(
        critic=critic, advantage=WithTargets(), rewards={"one": Constant()}, steps=3, callbacks=[watch], minibatches=2
    )
    # the head starts at zero, so the trunk feels it from the second update on
    assert torch.equal(watch.weights[1], watch.weights[3]) is not moves
    assert log[3]["critic/loss"] < log[1]["critic/loss"]
    assert (critic.body is not None) == (trunk == "own")


def test_the_policy_stands_still_while_the_critic_learns_its_returns():
    watch = Watch()
    critic = ValueModel(clip=None, learning_rate=1e-2)
    _, log = fit(
        critic=critic, advantage=GAE(critic_lam=1.0), update_schedule=CriticWarmUp(8), steps=10, callbacks=[watch],
        learning_rate=1e-2,
    )  # fmt: skip
    assert all(torch.equal(watch.weights[1], watch.weights[s]) for s in range(2, 9))
    assert not torch.equal(watch.weights[8], watch.weights[9])
    assert log[8]["critic/loss"] < 0.75 * log[1]["critic/loss"]
    assert "loss/policy" not in log[8]
    assert "loss/policy" in log[9]


def test_the_clip_holds_a_value_near_that_of_the_rollout():
    clipped = ValueModel(clip=1e-6, learning_rate=1e-1)
    _, log = fit(critic=clipped, advantage=GAE(), steps=1, ppo_epochs=3, minibatches=1)
    # zero at first; after one update the values have moved further than the clip allows
    assert 0.5 < log[1]["critic/clip_frac"] < 1.0


def test_a_resumed_run_with_a_critic_is_bit_identical(tmp_path):
    def parts():
        return {"critic": ValueModel(), "advantage": GAE(), "update_schedule": CriticWarmUp(1)}

    unbroken, _ = fit(steps=3, callbacks=[CheckpointCallback(tmp_path / "a", every=1)], **parts())
    fit(steps=2, callbacks=[CheckpointCallback(tmp_path / "b", every=1)], **parts())
    resumed, _ = fit(resume_from=tmp_path / "b", steps=3, callbacks=[CheckpointCallback(tmp_path / "b")], **parts())
    assert digest(resumed) == digest(unbroken)


def test_a_folder_gives_the_trunk_if_it_reads_the_same_tokens(tmp_path):
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    bigger = CharPolicy(hidden_size=32, layers=2, heads=2, init_seed=7)
    bigger.load()
    bigger.save(tmp_path / "same")
    critic = ValueModel(path=str(tmp_path / "same"))
    critic.build(policy)
    assert critic.head.in_features == 32
    torch.testing.assert_close(critic.body.embed_tokens.weight, bigger.model.model.embed_tokens.weight)

    bigger.tokenizer.add_tokens(["zebra"])
    bigger.save(tmp_path / "other")
    with pytest.raises(RecipeError, match=r"model.critic.path.*tokenizer"):
        ValueModel(path=str(tmp_path / "other")).build(policy)
    with pytest.raises(RecipeError, match=r"model.critic.path: cannot load"):
        ValueModel(path=str(tmp_path / "missing")).build(policy)


def test_contradictory_options_are_refused():
    with pytest.raises(ValueError, match="path"):
        ValueModel(trunk="joint", path="somewhere")
    with pytest.raises(ValueError, match="clip"):
        ValueModel(clip=0.0)
