import math

import pytest
import torch

from lit_group_rl.aggregators import SequenceMean
from lit_group_rl.clip_policies import FixedClip, NoClip, RatioRange
from lit_group_rl.ratios import SequenceSumRatio
from lit_group_rl.surrogates import (
    DRO,
    Clipped,
    GammaWeight,
    GroupClassification,
    ImportanceWeighted,
    OffPolicyShape,
    Quadratic,
    Reinforce,
    SoftGate,
    Unclipped,
)
from lit_group_rl.surrogates.gamma_weight import gamma_weight
from lit_group_rl.surrogates.group_classification import group_classification_loss
from lit_group_rl.types import EXPERT, POLICY, Bounds
from tests.builders import make_batch, make_context, matrix, with_grad

OLD = math.log(0.05)  # small enough for a ratio of 10 to be a probability


def one_token(surrogate, ratio: float, advantage: float, clip=None, component=None):
    """Loss of one token, and its gradient with respect to that token's log-prob."""
    batch = make_batch([[1]], advantages=[advantage], old_logp=[[OLD]])
    logp = with_grad([[OLD + math.log(ratio)]])
    clip = clip or NoClip()
    ctx = make_context(batch, logp, ratio=component, clip_policy=clip)
    loss = surrogate.loss(ctx, clip.bounds(ctx)).sum()
    (grad,) = torch.autograd.grad(loss, logp)
    return loss.item(), grad.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.5, 1.0, -1.28, 0.0),  # beyond 1.28 with the advantage: constant
        (1.5, -1.0, 1.5, 1.5),  # against it: free
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.8, 0.0),
        (1.1, 1.0, -1.1, -1.1),
    ],
)
def test_clipped(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    assert one_token(Clipped(), ratio, advantage, FixedClip(0.2, 0.28)) == pytest.approx((loss, gradient))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"), [(10.0, -1.0, 3.0), (10.0, 1.0, -1.2), (0.5, -1.0, 0.8), (2.0, -1.0, 2.0)]
)
def test_dual_clip_acts_on_negative_advantages_only(ratio: float, advantage: float, loss: float) -> None:
    """Known fault B17."""
    assert one_token(Clipped(), ratio, advantage, FixedClip(dual=3.0))[0] == pytest.approx(loss)


def test_without_the_dual_clip_the_loss_is_free() -> None:
    """Known fault B17, without the option."""
    assert one_token(Clipped(), 10.0, -1.0, FixedClip())[0] == pytest.approx(10.0)


def test_two_sided_clip() -> None:
    assert one_token(Clipped(), 10.0, -1.0, FixedClip(cap=4.0)) == pytest.approx((4.0, 0.0))


def test_a_token_that_is_not_kept_has_no_loss_and_no_gradient() -> None:
    for surrogate in (Clipped(), ImportanceWeighted()):
        logp = with_grad([[-1.0, -1.0]])
        ctx = make_context(make_batch([[1, 1]], advantages=[1.0]), logp)
        surrogate.loss(ctx, Bounds(keep=torch.tensor([[True, False]]))).sum().backward()
        assert logp.grad[0].tolist() == [-1, 0]


def test_linear() -> None:
    assert one_token(Unclipped(), 3.0, 2.0) == pytest.approx((-6.0, -6.0))


def test_reinforce() -> None:
    assert one_token(Reinforce(), 3.0, 2.0) == pytest.approx((-2 * (OLD + math.log(3)), -2.0))


def test_importance_weighted_keeps_the_gradient_of_a_clipped_token() -> None:
    # weight 1.3, not 3 and not 0
    loss, gradient = one_token(ImportanceWeighted(), 3.0, 2.0, RatioRange(0.5, 1.3))
    assert gradient == pytest.approx(-2.6)
    assert loss == pytest.approx(-2.6 * (OLD + math.log(3)))
    assert one_token(ImportanceWeighted(), 0.1, 2.0, RatioRange(0.5, 1.3))[1] == pytest.approx(-1.0)


def test_importance_weight_has_a_cap() -> None:
    logp = with_grad([[OLD + math.log(10)]])
    ctx = make_context(make_batch([[1]], advantages=[1.0], old_logp=[[OLD]]), logp)
    ImportanceWeighted().loss(ctx, Bounds(cap=4.0)).sum().backward()
    assert logp.grad.item() == pytest.approx(-4.0)


def test_soft_gate() -> None:
    # TRL 1.16: ratio 1.5, tau 1: -2.4898 = -4 * sigmoid(0.5); gradient -4 p (1 - p) * 1.5 with p = 0.622459
    loss, gradient = one_token(SoftGate(), 1.5, 1.0)
    assert (loss, gradient) == pytest.approx((-2.4898, -4 * 0.622459 * 0.377541 * 1.5), abs=5e-5)
    # tau 1.05 for the negative one: sigmoid(0.525) = 0.628317
    assert one_token(SoftGate(), 1.5, -1.0)[0] == pytest.approx(4 / 1.05 * 0.628317, abs=1e-5)


@pytest.mark.parametrize(("advantage", "phi"), [(1.0, 0.5020), (-1.0, 1.2416)])
def test_gamma_weight_of_a_ratio_of_one_and_a_half(advantage: float, phi: float) -> None:
    # the same as TRL 1.16; the weight carries no gradient of its own
    gradient = one_token(GammaWeight(), 1.5, advantage, component=SequenceSumRatio())[1]
    assert gradient == pytest.approx(-phi * advantage, abs=5e-5)


def test_gamma_weight_peaks_at_k_over_lambda_and_survives_any_ratio() -> None:
    d = torch.linspace(-3, 3, 601, dtype=torch.float64)
    assert d[gamma_weight(d, 2.0, 3.0).argmax()].exp().item() == pytest.approx(2 / 3, abs=0.01)
    assert gamma_weight(torch.tensor([-900.0, 900.0]), 2.0, 3.0).tolist() == pytest.approx([0, 0], abs=1e-12)


def test_gamma_weight_can_correct_the_samplers_mismatch_as_well() -> None:
    # trainer and policy agree, the sampler was at ratio 1.5
    batch = make_batch([[1]], advantages=[1.0], old_logp=[[OLD]], behaviour_logp=[[OLD - math.log(1.5)]])
    for corrects, phi in ((True, 0.5020), (False, 1.0)):
        logp = with_grad([[OLD]])
        ctx = make_context(batch, logp, ratio=SequenceSumRatio())
        GammaWeight(from_behaviour=corrects).loss(ctx, Bounds()).sum().backward()
        assert logp.grad.item() == pytest.approx(-phi, abs=5e-5)


def test_quadratic_gradient_vanishes_at_delta_and_pulls_back_beyond() -> None:
    # q = 0.05: p = 0.2 at ratio 4 is a move of 0.15
    assert one_token(Quadratic(0.15), 4.0, 1.0)[1] == pytest.approx(0.0, abs=1e-12)
    assert one_token(Quadratic(0.15), 1.0, 1.0)[1] == pytest.approx(-1.0)
    # p = 0.35 at ratio 7: weight 1 - 0.3 / 0.15 = -1, times ratio 7
    assert one_token(Quadratic(0.15), 7.0, 1.0)[1] == pytest.approx(7.0)


def test_dro() -> None:
    # -(2 logp - 0.05 d^2), d = ln 3; gradient -(2 - 0.1 d)
    d = math.log(3)
    loss, gradient = one_token(DRO(beta=0.1), 3.0, 2.0)
    assert loss == pytest.approx(-(2 * (OLD + d) - 0.05 * d * d))
    assert gradient == pytest.approx(-(2 - 0.1 * d))


def test_group_classification_on_policy() -> None:
    # scores 0: one right and two wrong -> ln 2 + ln 3; a group without right ones: ln 1 + ln 2
    scores = torch.zeros(4, dtype=torch.float64)
    solved, ids = torch.tensor([True, False, False, False]), torch.tensor([0, 0, 0, 1])
    valid = torch.ones(4, dtype=torch.bool)
    value = group_classification_loss(scores, solved, ids, valid, 0.5)
    assert value.tolist() == pytest.approx([math.log(6)] * 3 + [math.log(2)])
    valid[2] = False
    assert group_classification_loss(scores, solved, ids, valid, 0.5)[0].item() == pytest.approx(math.log(4))


def test_group_classification_with_the_sequence_mean_is_the_mean_over_groups() -> None:
    batch = make_batch(
        [[1, 1], [1, 0], [1, 0], [1, 1]],
        scores=[1, 0, 0, 0],
        solved=[1, 0, 0, 0],
        group_ids=[0, 0, 0, 1],
        old_logp=torch.full((4, 2), -1.0, dtype=torch.float64),
    )
    logp = with_grad(torch.full((4, 2), -1.0))
    ctx = make_context(batch, logp)
    loss = SequenceMean().reduce(GroupClassification().loss(ctx, Bounds()), ctx.mask, ctx.counts)
    assert loss.item() == pytest.approx((math.log(6) + math.log(2)) / 2)
    loss.backward()
    # right row: d/ds ln(1 + e^(-s / 0.5)) = -1 / (2 * 0.5) = -1, half of the groups, half a score per token
    assert logp.grad[0].tolist() == pytest.approx([-0.25, -0.25])
    # wrong rows: 1 / (3 * 0.5) and, alone in its group, 1 / (2 * 0.5)
    assert logp.grad[1, 0].item() == pytest.approx(1 / 3)
    assert logp.grad[3].tolist() == pytest.approx([0.25, 0.25])


def test_group_classification_does_not_overflow() -> None:
    scores = torch.tensor([-2000.0, 2000.0], requires_grad=True)
    value = group_classification_loss(
        scores, torch.tensor([True, False]), torch.zeros(2).long(), torch.ones(2).bool(), 0.5
    )
    value.sum().backward()
    assert value.tolist() == pytest.approx([8000, 8000])
    assert scores.grad.isfinite().all()


def test_offpolicy_shape_on_expert_rows_and_free_ratio_on_the_others() -> None:
    # expert: p = 0.1, f = 1/2, gradient gamma p / (p + gamma)^2 = 1/4; policy: ratio 10
    batch = make_batch([[1], [1]], advantages=[2.0, 2.0], row_role=[EXPERT, POLICY], old_logp=[[0.0], [math.log(0.01)]])
    logp = with_grad([[math.log(0.1)], [math.log(0.1)]])
    ctx = make_context(batch, logp)
    loss = OffPolicyShape().loss(ctx, Bounds())
    loss.sum().backward()
    assert loss[:, 0].tolist() == pytest.approx([-1.0, -20.0])
    assert logp.grad[:, 0].tolist() == pytest.approx([-0.5, -20.0])


def test_no_ratio_can_make_a_loss_infinite() -> None:
    # the exponent is cut at 20
    assert matrix(one_token(Unclipped(), math.exp(60), -1.0)).isfinite().all()


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (SoftGate, {"tau_positive": 0.0}),
        (SoftGate, {"tau_negative": -1.0}),
        (GammaWeight, {"k_positive": 0.0}),
        (Quadratic, {"delta": 0.0}),
        (DRO, {"beta": -0.1}),
        (GroupClassification, {"tau": 0.0}),
        (OffPolicyShape, {"gamma": 0.0}),
    ],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cls(**options)
