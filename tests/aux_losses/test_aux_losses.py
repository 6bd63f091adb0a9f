import itertools
import math

import pytest
import torch

from lit_group_rl.aggregators import TokenMean
from lit_group_rl.aux_losses import KL, Entropy, ExpertNLL, KLCov, PositiveNLL
from lit_group_rl.rewards import KLPenalty
from lit_group_rl.schedules import Linear
from lit_group_rl.types import BASELINE, EXPERT, POLICY
from tests.builders import counts_of, make_batch, make_context, matrix, with_grad


def total(aux, ctx, counts=None) -> torch.Tensor:
    """coef * term over the tokens it selects, as the module adds it."""
    selected = aux.selection(ctx.batch)
    counts = counts or counts_of(selected, ctx.batch.group_ids)
    return ctx.clock.at(aux.coef) * (aux.aggregator() or TokenMean()).reduce(aux.term(ctx), selected, counts)


def test_kl_adds_to_the_loss_and_pulls_towards_the_reference() -> None:
    """Known fault B19, its numbers."""
    # logp - ref = 0.5, beta 0.1: 0.1 * (e^-0.5 + 0.5 - 1) = 0.010653, gradient 0.1 * (1 - e^-0.5) = 0.039347
    logp = with_grad([[-1.0]])
    loss = total(KL(0.1), make_context(make_batch([[1]], ref_logp=[[-1.5]]), logp))
    loss.backward()
    assert loss.item() == pytest.approx(0.010653, abs=1e-6)
    assert logp.grad.item() == pytest.approx(0.039347, abs=1e-6)


def test_padding_does_not_set_the_weight_of_the_kl() -> None:
    """Known fault B11."""
    # policy losses 1, 1; k1 of 0.5, 0.5 and 100 off the mask; beta 0.1: 1 + 0.05
    batch = make_batch([[1, 1, 0]], ref_logp=[[-1.5, -1.5, -100.0]])
    ctx = make_context(batch, [[-1.0, -1.0, 0.0]])
    policy = TokenMean().reduce(torch.ones(1, 3, dtype=torch.float64), ctx.mask, ctx.counts)
    assert (policy + total(KL(0.1, estimator="k1"), ctx)).item() == pytest.approx(1.05)


def test_a_few_steps_on_the_kl_alone_lower_it() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[0.0, 0.5, 0.3]], dtype=torch.float64).log_softmax(-1)

    def divergence() -> float:
        p = logits.detach().log_softmax(-1)
        return (p.exp() * (p - reference)).sum().item()

    history = [divergence()]
    for _ in range(5):
        logp = logits.log_softmax(-1)
        # the three tokens as three completions, weighted by how often they are drawn
        batch = make_batch([[1]] * 3, ref_logp=reference.T)
        term = KL(1.0, estimator="k2").term(make_context(batch, logp.T))
        (grad,) = torch.autograd.grad((logp.detach().exp().T * term).sum(), logits)
        logits.data -= 0.5 * grad
        history.append(divergence())
    assert all(after < before for before, after in itertools.pairwise(history))


def test_ratio_weighted_kl_has_the_reverse_gradient_on_policy() -> None:
    # p = 0.5, ref = 0.25: value 0.5 + ln 2 - 1 = 0.193147; gradient ln 2 = 0.693147 (0.5 without the ratio)
    for weighted, expected in ((True, 0.693147), (False, 0.5)):
        logp = with_grad([[math.log(0.5)]])
        batch = make_batch([[1]], ref_logp=[[math.log(0.25)]], old_logp=[[math.log(0.5)]])
        loss = total(KL(1.0, ratio_weighted=weighted), make_context(batch, logp))
        loss.backward()
        assert loss.item() == pytest.approx(0.193147, abs=1e-6)
        assert logp.grad.item() == pytest.approx(expected, abs=1e-6)


def test_entropy_bonus_lowers_the_loss_where_entropy_is_high() -> None:
    ctx = make_context(make_batch([[1, 1, 0]]), [[-1.0, -1.0, 0.0]], entropy=[[0.5, 1.5, 99.0]])
    assert total(Entropy(0.01), ctx).item() == pytest.approx(-0.01)


def test_imitation_of_right_answers_does_not_depend_on_the_micro_batch() -> None:
    """Known fault B14."""
    # one token with NLL 2, and three with NLL 1: 5 / 4, not 2 + 1 and not their mean; the wrong row has no part
    whole = make_batch([[1, 0, 0], [1, 1, 1], [1, 1, 0]], solved=[1, 1, 0])
    logp = with_grad([[-2.0, 0, 0], [-1.0, -1.0, -1.0], [-7.0, -7.0, 0]])
    aux = PositiveNLL(coef=1.0)
    counts = counts_of(aux.selection(whole), whole.group_ids)
    assert total(aux, make_context(whole, logp)).item() == pytest.approx(1.25)
    parts = [torch.tensor([0]), torch.tensor([1, 2])]
    micro = [total(aux, make_context(whole.rows(i), logp[i][:, : int(whole.lengths[i].max())]), counts) for i in parts]
    assert sum(micro).item() == pytest.approx(1.25)
    sum(micro).backward()
    assert logp.grad.tolist() == [[-0.25, 0, 0], [-0.25] * 3, [0, 0, 0]]


def test_imitation_without_a_right_answer_is_zero() -> None:
    """Known fault B14, no right answer."""
    logp = with_grad([[-2.0]])
    loss = total(PositiveNLL(), make_context(make_batch([[1]], solved=[0]), logp))
    loss.backward()
    assert loss.item() == 0
    assert logp.grad.item() == 0


def test_imitation_leaves_given_answers_to_the_expert_term() -> None:
    batch = make_batch([[1], [1], [0]], solved=[1, 1, 1], row_role=[POLICY, EXPERT, BASELINE])
    assert PositiveNLL().selection(batch).tolist() == [[True], [False], [False]]
    assert ExpertNLL().selection(batch).tolist() == [[False], [True], [False]]


@pytest.mark.parametrize(("soften", "weight"), [(False, 1.0), (True, 0.2 * 0.8)])
def test_expert_term(soften: bool, weight: float) -> None:
    logp = with_grad([[math.log(0.2)], [-3.0]])
    batch = make_batch([[1], [1]], row_role=[EXPERT, POLICY])
    loss = total(ExpertNLL(0.5, soften=soften), make_context(batch, logp))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * weight * -math.log(0.2))
    assert logp.grad[:, 0].tolist() == pytest.approx([-0.5 * weight, 0])


def test_kl_cov_holds_the_tokens_that_vary_most_with_their_advantage() -> None:
    # deviations of A: -1, 1; of logp: -1.5, 0.5, 1.5, -0.5 -> covariances 1.5, -0.5, 1.5 -> A = [0, 0, 2, 2]
    batch = make_batch([[1, 1], [1, 1]], advantages=[0.0, 2.0], old_logp=[[-4.0, -2.5], [-1.5, -3.0]])
    logp = with_grad([[-4.0, -2.0], [-1.0, -3.0]])  # mean -2.5
    ctx = make_context(batch, logp)
    aux = KLCov(coef=1.0, share=0.5)
    aux.observe(ctx)
    loss = total(aux, ctx)
    loss.backward()
    # held: (0, 0) which has not moved, and (1, 0) with |d| = 0.5, over all four tokens; (0, 1) has moved but is free
    assert loss.item() == pytest.approx(0.5 / 4)
    assert logp.grad.tolist() == [[0, 0], [0.25, 0]]


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (KL, {"coef": -0.1}),
        (Entropy, {"coef": float("inf")}),
        (KLCov, {"share": 0.0}),
        (PositiveNLL, {"coef": -1.0}),
        (ExpertNLL, {"coef": -1.0}),
    ],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cls(**options)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
def test_the_options_of_the_divergence_act_in_the_loss_and_in_the_reward(estimator: str) -> None:
    """Known fault B24: coefficient, its schedule, estimator and the bound of k3 are the same in both places."""
    expected = {
        "k1": [0.5, -0.5, -50.0],
        "k2": [0.125, 0.125, 1250.0],
        "k3": [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, math.exp(20) - 21],  # the exponent stops at 20
        "abs": [0.5, 0.5, 50.0],
    }[estimator]
    batch = make_batch([[1, 1, 1]], ref_logp=[[-60.0] * 3], old_logp=[[-59.5, -60.5, -110.0]])
    # from 0.1 to 0.3 in 100 steps: 0.2 at step 50
    coef, step = Linear(0.1, 0.3), 50
    ctx = make_context(batch, batch.old_logp, step=step)
    loss = KL(coef, estimator=estimator)
    torch.testing.assert_close(ctx.clock.at(loss.coef) * loss.term(ctx), 0.2 * matrix([expected]))
    torch.testing.assert_close(KLPenalty(coef, estimator).shape(batch, ctx.clock), -0.2 * matrix([expected]))


def test_an_option_of_one_place_is_refused_in_the_other() -> None:
    """Known fault B24: what the reward could not do is no option of it."""
    KL(ratio_weighted=True)
    with pytest.raises(TypeError, match="ratio_weighted"):
        KLPenalty(ratio_weighted=True)
