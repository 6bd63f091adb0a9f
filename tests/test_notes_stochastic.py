"""Group-based stochastic: noise of the stated mean and variance, the same in any layout, none for sigma 0."""

from __future__ import annotations

import math

import pytest
import torch

from lit_group_rl.advantages import GroupRelative, NoisyAdvantage
from lit_group_rl.clip_policies import FixedClip
from lit_group_rl.functional.rng import row_normals
from lit_group_rl.loss_weights import GaussianNoise, RolloutIS
from lit_group_rl.loss_weights.gaussian_noise import lognormal_weight
from lit_group_rl.ratios import NoisyRatio, SequenceRatio, TokenRatio
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Clock, Linear
from lit_group_rl.surrogates import Clipped
from lit_group_rl.types import Recipe
from tests.builders import make_batch, make_context, with_grad
from tests.tiny_runs import digest, fit

CLOCK = Clock(3, 10)
DRAWS = 40_000


def noise(count: int = DRAWS) -> torch.Tensor:
    return row_normals(torch.arange(count), 1, "test")


def test_weights_have_mean_one_and_the_variance_of_a_log_normal() -> None:
    sigma = 0.2
    weight = lognormal_weight(noise(), sigma)
    variance = math.exp(sigma**2) - 1
    assert abs(float(weight.mean()) - 1) < 4 * math.sqrt(variance / DRAWS)
    assert float(weight.var()) == pytest.approx(variance, rel=0.05)


def test_the_expected_gradient_is_that_without_noise() -> None:
    """A clipped row and a free one, each drawn many times."""
    sigma = 0.2
    ratios = torch.tensor([[1.1, 1.5]]).log().double().repeat(DRAWS, 1)
    batch = make_batch(torch.ones(DRAWS, 2), advantages=[1.0] * DRAWS, old_logp=torch.zeros(DRAWS, 2), rows=DRAWS)
    grads = []
    for weight in (None, GaussianNoise(sigma)):
        logp = with_grad(ratios)
        ctx = make_context(batch, logp)
        values = Clipped().loss(ctx, FixedClip().bounds(ctx))
        if weight is not None:
            weight.prepare(batch, CLOCK)
            values = values * weight.weight(ctx)
        (grad,) = torch.autograd.grad(values.sum(), logp)
        grads.append(grad)
    plain, noisy = grads
    # the second token lies above 1.2 and has no gradient, with or without
    assert not plain[:, 1].any()
    assert not noisy[:, 1].any()
    relative = noisy[:, 0] / plain[:, 0]
    variance = math.exp(sigma**2) - 1
    assert abs(float(relative.mean()) - 1) < 4 * math.sqrt(variance / DRAWS)
    assert float(relative.var()) == pytest.approx(variance, rel=0.05)


def test_inside_the_clip_the_ratio_mode_is_the_weight_mode() -> None:
    batch = make_batch([[1, 1], [1, 0]], advantages=[1.0, -1.0], old_logp=[[-1.0, -1.0]] * 2)
    ratio = NoisyRatio(TokenRatio(), 0.05)
    ratio.prepare(batch, CLOCK)
    shift = batch.features["ratio_noise"]
    grads = []
    for noisy in (ratio, None):
        logp = with_grad([[-1.0, -1.02], [-0.99, 0.0]])
        ctx = make_context(batch, logp, ratio=noisy)
        values = Clipped().loss(ctx, FixedClip().bounds(ctx))
        if noisy is None:
            values = values * shift.exp()[:, None]
        (grad,) = torch.autograd.grad(values[batch.mask].sum(), logp)
        grads.append(grad)
    torch.testing.assert_close(*grads)


def test_at_the_edge_the_noise_moves_rows_across() -> None:
    rows = 200
    batch = make_batch(torch.ones(rows, 1), advantages=[1.0] * rows, old_logp=torch.zeros(rows, 1), rows=rows)
    ratio = NoisyRatio(SequenceRatio(), 0.1)
    ratio.prepare(batch, CLOCK)
    logp = with_grad(torch.full((rows, 1), math.log(1.2), dtype=torch.float64))
    ctx = make_context(batch, logp, ratio=ratio)
    (grad,) = torch.autograd.grad(Clipped().loss(ctx, FixedClip().bounds(ctx)).sum(), logp)
    clipped = float((grad == 0).double().mean())
    # P(sigma xi - sigma^2 / 2 > 0) = P(xi > 0.05) = 0.480; four standard errors of 200 draws are 0.141
    assert clipped == pytest.approx(0.480, abs=0.141)


def test_noise_on_the_advantage_also_moves_tied_groups() -> None:
    batch = make_batch(scores=[1, 1, 0, 1], group_ids=[0, 0, 1, 1])
    estimator = NoisyAdvantage(GroupRelative(), 0.1)
    batch.advantages = estimator.estimate(batch).values
    before = batch.advantages.clone()
    estimator.prepare(batch, CLOCK)
    assert not before[:2].any()
    assert batch.advantages[:2].all()
    # and the multiplicative form does not
    weight = GaussianNoise(0.1)
    weight.prepare(batch, CLOCK)
    assert not (before[:2] * batch.features["gradient_noise"][:2, None]).any()


@pytest.mark.parametrize("component", [GaussianNoise(0.2), NoisyRatio(TokenRatio(), 0.2)])
def test_noise_belongs_to_the_row_the_step_and_the_seed(component) -> None:
    def drawn(index: torch.Tensor, step: int = 3, seed: int = 1) -> torch.Tensor:
        batch = make_batch(rows=6, scores=[0.0] * 6).rows(index)
        batch.seed = seed
        component.prepare(batch, Clock(step, 10))
        return next(iter(batch.features.values()))

    whole = drawn(torch.arange(6))
    assert torch.equal(
        torch.cat([drawn(torch.tensor([4, 5])), drawn(torch.tensor([0, 1, 2, 3]))]), whole[[4, 5, 0, 1, 2, 3]]
    )
    assert not (drawn(torch.arange(6), step=4) == whole).any()
    assert not (drawn(torch.arange(6), seed=2) == whole).any()


def test_the_recipe_lets_the_noise_fall_from_02_to_001() -> None:
    sigma = Linear(start=0.2, end=0.01)
    assert sigma.value(Clock(0, 320)) == 0.2
    assert sigma.value(Clock(320, 320)) == pytest.approx(0.01)
    batch = make_batch(rows=3)
    for step, share in ((0, 0.2), (10, 0.01)):
        GaussianNoise(sigma).prepare(batch, Clock(step, 10))
        xi = row_normals(batch.row_ids, batch.seed, "gradient_noise", step)
        assert torch.equal(batch.features["gradient_noise"], lognormal_weight(xi, sigma.value(Clock(step, 10))))
        assert float(batch.features["gradient_noise"].log().std()) == pytest.approx(share * float(xi.std()))


def test_sigma_zero_is_grpo_to_the_bit_and_more_is_not() -> None:
    grpo = digest(fit(steps=2)[0])
    forms = [
        lambda sigma: {"loss_weights": {"noise": GaussianNoise(sigma)}},
        lambda sigma: {"ratio": NoisyRatio(TokenRatio(), sigma)},
        lambda sigma: {"advantage": NoisyAdvantage(GroupRelative(), sigma)},
        lambda sigma: {"sampler": GroupSampler(group_size=4, max_new_tokens=6, logit_noise=sigma)},
    ]
    for form in forms:
        assert digest(fit(steps=2, **form(0.0))[0]) == grpo
    assert len({digest(fit(steps=2, **form(0.2))[0]) for form in forms} | {grpo}) == 5


def test_noise_does_not_depend_on_micro_batches() -> None:
    parts = {"loss_weights": {"noise": GaussianNoise(0.2)}, "ratio": NoisyRatio(TokenRatio(), 0.1)}
    logs = [fit(steps=2, micro_batch_tokens=tokens, **parts)[1] for tokens in (10**6, 16)]
    for tag in ("loss/total", "optim/grad_norm"):
        assert logs[0][2][tag] == pytest.approx(logs[1][2][tag], abs=1e-5)


def test_noisy_logits_without_a_correction_are_pointed_out() -> None:
    sampler = GroupSampler(logit_noise=0.1)
    (problem,) = sampler.checks(Recipe({"sampler": sampler, "loss_weights": {}}, 8, 8, 1))
    assert problem.warning
    assert "RolloutIS" in problem.fix
    assert not list(sampler.checks(Recipe({"sampler": sampler, "loss_weights": {"tis": RolloutIS()}}, 8, 8, 1)))
    assert not list(GroupSampler().checks(Recipe({}, 8, 8, 1)))
