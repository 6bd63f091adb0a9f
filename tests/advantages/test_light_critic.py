"""The baseline that blends a critic with the group."""

import itertools
import math

import pytest
import torch

from lit_group_rl.advantages import GAE, GroupRelative, LightCriticBaseline
from lit_group_rl.critics import LightCritic
from lit_group_rl.types import Recipe
from tests.builders import make_batch

SCORES, GROUPS = [0.9, 0.1, 0.5, 0.2, 0.0, 1.0, 0.3, 0.3], [0, 0, 0, 0, 1, 1, 1, 1]


def advantages(estimator, scores, values, groups=None):
    batch = make_batch(scores=scores, group_ids=groups or [0] * len(scores), values=[[v] for v in values])
    return estimator.estimate(batch).values[:, 0].tolist()


def test_without_the_critic_it_is_dr_grpo():
    batch = make_batch([[1, 1], [1, 0]] * 4, scores=SCORES, group_ids=GROUPS, values=torch.rand(8, 2).double())
    ours = LightCriticBaseline(mix=0.0).estimate(batch).values
    assert torch.equal(ours, GroupRelative(divide_by="none").estimate(batch).values)


def test_a_tied_group_still_gives_a_signal():
    # 0.3 * (1 - mean 1) + 0.7 * (1 - 0.25)
    assert advantages(LightCriticBaseline(), [1.0, 1.0], [0.25, 0.25]) == pytest.approx([0.525, 0.525])


def test_every_trained_token_has_the_score_as_its_target_without_gradient():
    values = torch.tensor([[0.2, 0.4], [0.1, 9.0]], dtype=torch.float64, requires_grad=True)
    batch = make_batch([[1, 1], [1, 0]], scores=[1.0, 0.0], values=values)
    result = LightCriticBaseline().estimate(batch)
    assert result.returns.tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert not result.returns.requires_grad
    assert not result.values.requires_grad


def test_an_abstained_row_moves_neither_policy_nor_critic():
    batch = make_batch([[1], [1], [1]], scores=[1.0, 0.0, math.nan], values=[[0.5], [0.5], [0.3]])
    result = LightCriticBaseline(mix=0.5).estimate(batch)
    assert result.values[:, 0].tolist() == pytest.approx([0.5, -0.5, 0.0])
    assert result.returns[:, 0].tolist() == [1.0, 0.0, pytest.approx(0.3)]


def test_shrinkage_begins_with_the_other_members_and_then_measures_the_critic():
    estimator = LightCriticBaseline(shrinkage=True, error_decay=0.5)
    # others' mean: 0.25, 0.25, 0.5 -> A = 0.5 - (0.5 + 0)/2, ...; the critic's error is not known yet
    assert advantages(estimator, [0.5, 0.5, 0.0], [1.0, 1.0, 1.0]) == pytest.approx([0.25, 0.25, -0.5])
    assert estimator.state_dict() == {"error": pytest.approx(0.5)}  # (0.25 + 0.25 + 1) / 3
    advantages(estimator, [0.5, 0.5, 0.0], [0.5, 0.5, 0.0])
    assert estimator.state_dict() == {"error": pytest.approx(0.25)}  # 0.5 * 0.5 + 0.5 * 0
    other = LightCriticBaseline(shrinkage=True)
    other.load_state_dict(estimator.state_dict())
    assert other.state_dict() == estimator.state_dict()


def test_shrinkage_leaves_small_groups_to_the_critic():
    estimator = LightCriticBaseline(shrinkage=True)
    estimator.load_state_dict({"error": 0.1})
    assert advantages(estimator, [1.0, 0.0, 1.0], [0.4, 0.4, 0.9], groups=[0, 0, 1]) == pytest.approx([0.6, -0.4, 0.1])


def test_whitening_is_over_all_tokens():
    values = torch.tensor(advantages(LightCriticBaseline(whiten=True), SCORES, [0.3] * 8, GROUPS), dtype=torch.float64)
    assert values.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert values.std().item() == pytest.approx(1.0, abs=1e-6)


def expected_gradient(estimator, probabilities, rewards, value, members):
    """Mean of A[i] * grad log pi(y[i]) over all draws of a group, each with its probability."""
    pi = torch.tensor(probabilities, dtype=torch.float64)
    total = torch.zeros(len(pi), dtype=torch.float64)
    for draw in itertools.product(range(len(pi)), repeat=members):
        a = advantages(estimator(), [rewards[y] for y in draw], [value] * members)
        weight = math.prod(probabilities[y] for y in draw)
        for y, advantage in zip(draw, a, strict=True):
            score = -pi.clone()
            score[y] += 1  # d log softmax(theta)[y] / d theta
            total += weight * advantage * score / members
    return total


def known(error=0.04):
    estimator = LightCriticBaseline(shrinkage=True)
    estimator.load_state_dict({"error": error})
    return estimator


@pytest.mark.parametrize(
    ("estimator", "factor"),
    [
        (known, 1.0),  # only the others enter the baseline
        (lambda: LightCriticBaseline(mix=1.0), 1.0),
        # the group mean holds the row itself: (1 - mix) / members of the gradient is lost
        (lambda: LightCriticBaseline(mix=0.7), 1 - 0.3 / 3),
        (lambda: LightCriticBaseline(mix=0.0), 1 - 1 / 3),
    ],
    ids=["shrinkage", "critic", "blend", "group"],
)
def test_the_expected_gradient_is_that_of_reinforce(estimator, factor):
    probabilities, rewards = [0.2, 0.5, 0.3], [1.0, 0.0, 0.4]
    mean = sum(p * r for p, r in zip(probabilities, rewards, strict=True))
    # gradient of sum p r over the logits: p (r - mean)
    exact = [p * (r - mean) for p, r in zip(probabilities, rewards, strict=True)]
    found = expected_gradient(estimator, probabilities, rewards, value=0.4, members=3)
    assert found.tolist() == pytest.approx([factor * g for g in exact])


def test_a_critic_that_knows_the_value_halves_the_variance_of_two_members():
    p = 0.3

    def variance(estimator):
        out = 0.0
        for draw in itertools.product([0.0, 1.0], repeat=2):
            weight = math.prod(p if r else 1 - p for r in draw)
            out += weight * advantages(estimator(), list(draw), [p, p])[0] ** 2
        return out

    assert variance(lambda: LightCriticBaseline(mix=1.0)) == pytest.approx(0.21)  # p (1 - p)
    assert variance(lambda: LightCriticBaseline(shrinkage=True)) == pytest.approx(0.42)  # twice: leave one out


@pytest.mark.parametrize("estimator", [GAE(), LightCriticBaseline()])
def test_it_is_refused_without_a_critic(estimator):
    alone = Recipe({"advantage": estimator, "critic": None}, 4, 4, 1)
    assert [p.field for p in estimator.checks(alone)] == ["model.critic"]
    assert list(estimator.checks(Recipe({"advantage": estimator, "critic": LightCritic()}, 4, 4, 1))) == []


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="mix"):
        LightCriticBaseline(mix=1.5)
    with pytest.raises(ValueError, match="error_decay"):
        LightCriticBaseline(error_decay=-0.1)
