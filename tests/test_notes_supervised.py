"""Groupwise supervised: the literal text has no effect, the four readings have the effect they claim."""

from __future__ import annotations

import pytest
import torch

from lit_group_rl.advantages import BetweenGroup, GroupRelative, LeaveOneOut
from lit_group_rl.aggregators import SequenceMean
from lit_group_rl.aux_losses import KL, GroupSupervised
from lit_group_rl.clip_policies import FixedClip
from lit_group_rl.functional.similarity import member_scores
from lit_group_rl.loss_weights import GroupWeight
from lit_group_rl.rewards import GroupRougeL
from lit_group_rl.schedules import Clock, Linear
from lit_group_rl.surrogates import Clipped
from lit_group_rl.types import Recipe
from tests.builders import make_batch, make_context, with_grad
from tests.tiny_runs import Digits, digest, fit

NAN = float("nan")
CLOCK = Clock(0, 10)
IDS = [0, 0, 0, 1, 1, 1]
SCORES = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
QUALITY = [0.8, 0.8, 0.8, 0.2, 0.2, 0.2]
MASK = [[1, 1], [1, 0], [1, 1], [1, 1], [1, 0], [1, 1]]


def batch_with(quality=QUALITY, **changes):
    batch = make_batch(MASK, scores=SCORES, group_ids=IDS, rewards={"q": quality}, **changes)
    batch.advantages = GroupRelative().estimate(batch).values
    return batch


def gradient(batch, *, coef: float, weight=None, aux=None, policy: float = 1.0) -> torch.Tensor:
    """Of policy * loss + coef * supervised term with respect to the log-probs, flattened."""
    logp = with_grad([[-0.5, -1.0]] * 6)
    ctx = make_context(batch, logp)
    values = Clipped().loss(ctx, FixedClip().bounds(ctx))
    if weight is not None:
        values = values * weight.weight(ctx)
    loss = policy * SequenceMean().reduce(values, ctx.mask, ctx.counts)
    if aux is not None:
        loss = loss + coef * aux.aggregator().reduce(aux.term(ctx), aux.selection(batch), ctx.counts)
    (grad,) = torch.autograd.grad(loss, logp)
    return grad.flatten()


def supervised(batch, **options) -> GroupSupervised:
    aux = GroupSupervised("q", **options)
    aux.prepare(batch, CLOCK)
    return aux


@pytest.mark.parametrize("estimator", [GroupRelative(), GroupRelative(divide_by="none"), LeaveOneOut()])
def test_quality_added_to_every_reward_of_a_group_changes_nothing(estimator) -> None:
    plain = make_batch(scores=SCORES, group_ids=IDS)
    shaped = make_batch(scores=[s + 0.2 * q for s, q in zip(SCORES, QUALITY, strict=True)], group_ids=IDS)
    torch.testing.assert_close(estimator.estimate(shaped).values, estimator.estimate(plain).values)


def test_quality_added_to_the_loss_has_no_gradient() -> None:
    batch = batch_with()
    logp = with_grad([[-0.5, -1.0]] * 6)
    ctx = make_context(batch, logp)
    loss = SequenceMean().reduce(Clipped().loss(ctx, FixedClip().bounds(ctx)), ctx.mask, ctx.counts)
    literal = loss + 0.2 * (1 - batch.rewards["q"].mean())
    (plain,) = torch.autograd.grad(loss, logp, retain_graph=True)
    (with_term,) = torch.autograd.grad(literal, logp)
    assert float(literal.detach()) != float(loss.detach())
    assert torch.equal(plain, with_term)


def test_supervised_gradient_by_hand() -> None:
    batch = batch_with()
    # group 0: one positive row of 2 tokens, 0.8 / 1 / 2 tokens / 2 groups = 0.2 a token
    # group 1: two positive rows, 0.2 / 2 / 2 groups = 0.05 a row: 0.025 a token of two, 0.05 of the single one
    expected = [-0.2, -0.2, 0, 0, 0, 0, -0.025, -0.025, -0.05, 0, 0, 0]
    grad = gradient(batch, coef=1.0, policy=0.0, aux=supervised(batch))
    assert grad.tolist() == pytest.approx(expected)


def test_the_direction_tends_to_that_of_the_likelihood_as_lambda_grows() -> None:
    batch = batch_with()
    aux = supervised(batch)
    alone = gradient(batch, coef=1.0, policy=0.0, aux=aux)
    cosines = [
        float(torch.cosine_similarity(gradient(batch, coef=lam, aux=aux), alone, dim=0))
        for lam in (0.0, 0.2, 1.0, 10.0, 1000.0)
    ]
    assert cosines == sorted(cosines)
    assert cosines[0] < 0.95
    assert cosines[-1] > 0.99999


def test_groups_without_quality_or_below_zero_imitate_nothing() -> None:
    for quality in ([NAN] * 3 + [0.2] * 3, [-0.5] * 3 + [0.2] * 3):
        batch = batch_with(quality)
        grad = gradient(batch, coef=1.0, policy=0.0, aux=supervised(batch)).view(6, 2)
        assert not grad[:3].any()
        assert grad[3:].any()


def test_standardised_quality_of_a_reward_model() -> None:
    # scores of any scale: 100 above 40 gives +1 and -1 between two groups; the lower one imitates nothing
    batch = batch_with([100.0] * 3 + [40.0] * 3)
    weight = batch.features
    supervised(batch, standardise=True)
    (column,) = weight.values()
    assert column.tolist() == pytest.approx([1, 0, 0, 0, 0, 0], abs=1e-6)


def test_permuting_a_group_permutes_the_weights() -> None:
    order = torch.tensor([2, 0, 1, 5, 3, 4])
    batch, moved = batch_with(), batch_with().rows(order)
    supervised(batch)
    supervised(moved)
    (straight,), (permuted,) = batch.features.values(), moved.features.values()
    assert torch.equal(straight[order], permuted)


def test_group_weight_by_hand() -> None:
    # z is +1 and -1 between two groups
    batch = batch_with()
    weight = GroupWeight("q", strength=0.3)
    weight.prepare(batch, CLOCK)
    assert weight.weight(make_context(batch, torch.zeros(6, 2)))[:, 0].tolist() == pytest.approx(
        [1.3] * 3 + [0.7] * 3, abs=1e-5
    )
    strong = GroupWeight("q", strength=Linear(2.0, 0.0))
    strong.prepare(batch, CLOCK)
    # 1 - 2 z is held at 0
    assert strong.weight(make_context(batch, torch.zeros(6, 2)))[3:, 0].tolist() == [0, 0, 0]


def test_group_weight_keeps_the_order_inside_a_group() -> None:
    batch = batch_with()
    weight = GroupWeight("q", strength=0.3)
    weight.prepare(batch, CLOCK)
    plain, weighted = gradient(batch, coef=0), gradient(batch, coef=0, weight=weight)
    torch.testing.assert_close(
        weighted, plain * torch.tensor([1.3] * 6 + [0.7] * 6, dtype=torch.float64), rtol=1e-5, atol=0
    )


def test_between_group_survives_where_a_group_is_tied() -> None:
    batch = make_batch(scores=[1, 1, 0, 0], group_ids=[0, 0, 1, 1], rewards={"q": [0.9, 0.9, 0.1, 0.1]})
    values = BetweenGroup(GroupRelative(), "q", strength=0.2).estimate(batch).values[:, 0]
    assert values.tolist() == pytest.approx([0.2, 0.2, -0.2, -0.2], abs=1e-5)


def test_rows_that_do_not_count_get_nothing() -> None:
    batch = make_batch(
        [[1], [1], [0], [1]], scores=[1, 0, 1, 0], group_ids=[0, 0, 1, 1], rewards={"q": [0.9, 0.9, 0.1, 0.1]}
    )
    values = BetweenGroup(GroupRelative(), "q").estimate(batch).values[:, 0]
    assert values[2] == 0
    assert values[3] == pytest.approx(-0.2, abs=1e-5)


@pytest.mark.parametrize(
    "component", [GroupSupervised("lost"), GroupWeight("lost"), BetweenGroup(GroupRelative(), "lost")]
)
def test_a_quality_that_no_reward_gives_is_refused(component) -> None:
    (problem,) = component.checks(Recipe({"rewards": {"q": None}}, 8, 4, 1))
    assert "'lost'" in problem.message
    assert problem.fix == "Use one of: q"


def run(supervised: GroupSupervised | None = None, **changes):
    aux_losses = {"kl": KL(0.04)} | ({} if supervised is None else {"supervised": supervised})
    rewards = {"digits": Digits(), "agreement": GroupRougeL(unit="character")}
    module, log = fit(steps=3, rewards=rewards, aux_losses=aux_losses, **changes)
    return digest(module), log


def test_lambda_zero_is_grpo_to_the_bit_and_more_is_not() -> None:
    def forms(strength: float) -> list[str]:
        return [
            run(GroupSupervised("agreement", coef=strength))[0],
            run(loss_weights={"groups": GroupWeight("agreement", strength=strength)})[0],
            run(advantage=BetweenGroup(GroupRelative(), "agreement", strength=strength))[0],
        ]

    grpo, log = run()
    assert 0 < log[1]["group/distinct_frac"] <= 1
    assert forms(0.0) == [grpo] * 3
    assert len({grpo, *forms(0.2)}) == 4


def test_group_and_member_form_have_one_expected_gradient_and_the_member_form_less_variance() -> None:
    """All groups of two from a policy over two texts, each with its chance."""
    p, s = 0.3, 0.5
    similarity = torch.tensor([[1.0, s], [s, 1.0]], dtype=torch.float64)
    chance = {0: p, 1: 1 - p}
    # d log pi / d theta of a Bernoulli with logit theta: 1 - p for the first text, -p for the second
    score = {0: 1 - p, 1: -p}
    by_group, by_member = [], []
    for a in (0, 1):
        for b in (0, 1):
            c = member_scores(similarity[[a, b]][:, [a, b]])
            w = chance[a] * chance[b]
            by_group.append((w, float(c.mean()) * (score[a] + score[b])))
            by_member.append((w, float(c[0]) * score[a] + float(c[1]) * score[b]))
    means = [sum(w * x for w, x in form) for form in (by_group, by_member)]
    # E[C] = 1 - 2 p (1 - p) (1 - s); its derivative by the logit is -2 (1 - s) (1 - 2 p) p (1 - p)
    assert means == pytest.approx([-2 * (1 - s) * (1 - 2 * p) * p * (1 - p)] * 2)
