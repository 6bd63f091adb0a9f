"""The two-layer critic on the policy's states."""

import pytest
import torch

from lit_group_rl.advantages import GAE, LightCriticBaseline
from lit_group_rl.critics import LightCritic
from lit_group_rl.data import Addition
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.rewards import ExactMatch
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import LossContext, Recipe, RecipeError
from lit_group_rl.update_schedules import CriticWarmUp
from tests.builders import counts_of, make_batch
from tests.tiny_runs import fit


@pytest.fixture(scope="module")
def policy():
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    return policy


def sampled(policy, prompts=3):
    train, _ = Addition(level=1).load(8)
    batch = GroupSampler(group_size=4, max_new_tokens=6).sample(policy, train[:prompts], range(prompts), Clock(0, 1), 1)
    batch.scores = (batch.row_ids % 3).double() / 2
    batch.returns = torch.where(batch.mask, batch.scores[:, None], 0.0)
    return batch


def built(policy, **options):
    """A critic whose last layer is not zero, as after some training."""
    critic = LightCritic(width=8, **options)
    critic.build(policy)
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.net[2].weight)
    return critic


def context(policy, batch, critic):
    scores = policy.score(batch, hidden=True)
    batch.features["hidden"] = scores.hidden  # with its gradient, which the critic must not use
    counts = counts_of(batch.mask, batch.group_ids)
    return LossContext(batch, scores.logp, scores.logp, None, counts, Clock(0, 1), 1, MetricBag())


def test_a_new_critic_says_zero(policy):
    critic, batch = LightCritic(), sampled(policy)
    critic.build(policy)
    critic.annotate(batch, policy)
    assert torch.equal(batch.values, torch.zeros_like(batch.values))
    assert [tuple(p.shape) for p in critic.parameters()] == [(256, 16), (256,), (1, 256), (1,)]


def test_a_value_knows_nothing_of_its_token_and_what_follows(policy):
    critic, batch = built(policy), sampled(policy)
    critic.annotate(batch, policy)
    before = batch.values.clone()
    cut = 2
    rows = batch.lengths > cut + 1
    assert rows.any()
    batch.completion_ids[:, cut:] = (batch.completion_ids[:, cut:] + 3) % 20 + 2
    critic.annotate(batch, policy)
    torch.testing.assert_close(batch.values[:, : cut + 1], before[:, : cut + 1])
    assert (batch.values[rows, cut + 1] - before[rows, cut + 1]).abs().max() > 1e-3


def test_padding_and_the_size_of_the_parts_change_no_value(policy):
    critic, batch = built(policy), sampled(policy)
    critic.annotate(batch, policy)
    whole = batch.values
    assert torch.equal(whole[~batch.completion_mask], torch.zeros(int((~batch.completion_mask).sum())))
    critic.micro_batch_tokens = 10
    critic.annotate(batch, policy)
    torch.testing.assert_close(batch.values, whole)


def test_its_loss_leaves_the_policy_alone(policy):
    critic, batch = built(policy), sampled(policy)
    policy.zero_grad()
    critic.loss(context(policy, batch, critic), policy).backward()
    assert all(p.grad is None for p in policy.parameters())
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in critic.parameters())


def test_the_loss_is_half_the_mean_square_over_trained_tokens():
    critic = LightCritic(width=1)
    critic.build(type("Policy", (), {"hidden_width": 2}))
    critic.net[2].bias.data.fill_(0.5)
    batch = make_batch([[1, 1], [1, 0]], scores=[1.0, 0.0], returns=[[1.0, 1.5], [0.0, 99.0]])
    batch.features["hidden"] = torch.zeros(2, 2, 2)
    ctx = LossContext(batch, None, None, None, counts_of(batch.mask, batch.group_ids), Clock(0, 1), 1, MetricBag())
    # ((0.5 - 1)^2 + (0.5 - 1.5)^2 + (0.5 - 0)^2) / 2 / 3
    assert critic.loss(ctx, None).item() == pytest.approx(0.25)
    assert ctx.metrics.reduce()["critic/loss"] == pytest.approx(0.25)
    critic.positions = "prompt"
    # one value per row against the row's score: (0.25 + 0.25) / 2 / 2
    assert critic.loss(ctx, None).item() == pytest.approx(0.125)


def test_parts_of_a_minibatch_add_up_to_the_whole(policy):
    critic, batch = built(policy), sampled(policy)
    whole = context(policy, batch, critic)
    expected = critic.loss(whole, policy).item()
    total = 0.0
    for index in (torch.arange(5), torch.arange(5, 12)):
        part = context(policy, batch.rows(index), critic)
        part.counts = whole.counts
        total += critic.loss(part, policy).item()
    assert total == pytest.approx(expected, rel=1e-5)


def test_at_the_prompt_a_group_has_one_value(policy):
    critic, batch = built(policy, positions="prompt"), sampled(policy)
    critic.annotate(batch, policy)
    for group in batch.group_ids.unique():
        values = batch.values[batch.group_ids == group][batch.completion_mask[batch.group_ids == group]]
        torch.testing.assert_close(values, values[:1].expand_as(values))
    assert batch.values[batch.completion_mask].std() > 1e-3


def test_cross_entropy_predicts_a_probability_and_refuses_other_scores(policy):
    critic, batch = built(policy, objective="bce"), sampled(policy)
    critic.annotate(batch, policy)
    values = batch.values[batch.completion_mask]
    assert ((values > 0) & (values < 1)).all()
    critic.net[2].weight.data.zero_()
    # a value of 1/2 costs log 2 whatever the label
    assert critic.loss(context(policy, batch, critic), policy).item() == pytest.approx(0.693147, abs=1e-5)
    batch.returns = torch.where(batch.mask, -1.0, 0.0)
    with pytest.raises(RecipeError, match=r"bce.*this step has -1 to -1"):
        critic.loss(context(policy, batch, critic), policy)


def test_contradictions_are_found_before_the_run():
    critic = LightCritic()
    idle = {"advantage": None, "critic": critic, "rewards": {"exact": ExactMatch()}}
    assert [p.field for p in critic.checks(Recipe(idle, 4, 4, 1))] == ["model.critic"]
    assert list(critic.checks(Recipe(idle | {"advantage": GAE()}, 4, 4, 1))) == []

    class Signed(ExactMatch):
        range = (-1.0, 1.0)

    wrong = {"advantage": GAE(), "rewards": {"signed": Signed()}}
    assert [p.field for p in LightCritic(objective="bce").checks(Recipe(wrong, 4, 4, 1))] == ["model.critic.objective"]
    with pytest.raises(ValueError, match="width"):
        LightCritic(width=0)


@pytest.mark.parametrize("positions", ["all", "prompt"])
def test_it_learns_the_returns_of_a_fixed_policy(positions):
    critic = LightCritic(width=32, positions=positions, learning_rate=1e-2)
    _, log = fit(critic=critic, advantage=LightCriticBaseline(), update_schedule=CriticWarmUp(25), steps=25)
    first, last = log[1], log[25]
    assert first["critic/value_mean"] == 0.0
    # the first error is half the mean square of the returns; a critic that knows their mean is left with the variance
    assert last["critic/loss"] < 0.75 * first["critic/loss"]
    assert last["critic/value_mean"] == pytest.approx(last["critic/return_mean"], abs=0.1)
