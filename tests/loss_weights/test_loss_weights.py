import math

import pytest
import torch

from lit_group_rl.aggregators import TokenMean
from lit_group_rl.loss_weights import (
    ClipCov,
    EntropyQuantile,
    FutureKL,
    OffPolicySequenceMask,
    RolloutIS,
    TruncatedMask,
)
from lit_group_rl.schedules import Clock
from tests.builders import make_batch, make_context, matrix

L2, L3 = math.log(2), math.log(3)


def rollout_context(log_weights: list[list[float]], mask: list[list[int]]):
    old = torch.full((len(mask), len(mask[0])), -5.0, dtype=torch.float64)
    return make_context(make_batch(mask, old_logp=old, behaviour_logp=old - matrix(log_weights)), old)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2.0, 0.5, 0]),  # token weights 3 and 1/2, cut at 2; what lies off the mask is 0
        ({"mode": "mask", "low": 0.6, "cap": 5.0}, [3.0, 0, 0]),
        ({"level": "sequence"}, [1.5, 1.5, 0]),
        ({"level": "geometric"}, [math.sqrt(1.5)] * 2 + [0]),
        ({"level": "geometric", "mode": "mask", "low": 1.0, "cap": 1.3, "keep_token_weights": True}, [3.0, 0.5, 0]),
        ({"level": "geometric", "mode": "mask", "low": 1.0, "cap": 1.2, "keep_token_weights": True}, [0, 0, 0]),
    ],
)
def test_rollout_is(options: dict, expected: list[float]) -> None:
    ctx = rollout_context([[L3, -L2, 9.0]], [[1, 1, 0]])
    weight = RolloutIS(**options).weight(ctx)
    assert weight[0].tolist() == pytest.approx(expected)
    assert not weight.requires_grad


def test_rollout_is_is_one_when_sampler_and_trainer_agree() -> None:
    for level in ("token", "sequence", "geometric"):
        assert RolloutIS(level=level).weight(rollout_context([[0.0, 0.0]], [[1, 1]])).tolist() == [[1, 1]]


def test_entropy_quantile_keeps_the_share_with_the_highest_entropy() -> None:
    # the 0.5-quantile of 1, 2, 3, 4 is 2.5; the padding's 9 has no part
    batch = make_batch([[1, 1, 0], [1, 1, 0]])
    ctx = make_context(batch, torch.zeros(2, 3, dtype=torch.float64), entropy=[[1.0, 4.0, 9.0], [3.0, 2.0, 9.0]])
    weight = EntropyQuantile(0.5)
    weight.observe(ctx)
    assert weight.weight(ctx).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_off_policy_sequence_mask_drops_wrong_rows_that_were_left_behind() -> None:
    # mean fall per token: 0.2, 0.2, 0.05; only the first is both stale and wrong
    batch = make_batch([[1, 1]] * 3, advantages=[-1.0, 1.0, -1.0], behaviour_logp=[[-1.0, -1.0]] * 3)
    ctx = make_context(batch, [[-1.3, -1.1], [-1.3, -1.1], [-1.0, -1.1]])
    assert OffPolicySequenceMask(0.1).weight(ctx).tolist() == [[0, 0], [1, 1], [1, 1]]


def cov_context(**options):
    generator = torch.Generator().manual_seed(0)
    logp = -3 * torch.rand(40, 5, generator=generator, dtype=torch.float64)
    batch = make_batch(
        torch.ones(40, 5), advantages=torch.randn(40, generator=generator, dtype=torch.float64), old_logp=logp
    )
    return make_context(batch, logp, **options)


CLIP_COV = {"share": 0.05, "cov_low": 0.1, "cov_high": 5.0}


def test_clip_cov_drops_the_share_of_all_tokens_and_only_candidates() -> None:
    from lit_group_rl.functional.selection import covariance

    ctx = cov_context()
    weight = ClipCov(**CLIP_COV)
    weight.observe(ctx)
    dropped = weight.weight(ctx) == 0
    assert dropped.sum() == 10  # 5% of 200
    cov = covariance(ctx.logp, ctx.advantages, ctx.mask)
    assert (cov[dropped] > 0.1).all()
    assert (cov > 0.1).sum() > 10  # there was a choice


def test_clip_cov_draws_anew_each_step_but_not_each_time() -> None:
    def draw(step: int, seed: int = 1) -> torch.Tensor:
        ctx = cov_context(step=step, seed=seed)
        weight = ClipCov(**CLIP_COV)
        weight.observe(ctx)
        return weight.weight(ctx)

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert not torch.equal(draw(3), draw(3, seed=2))


@pytest.mark.parametrize("weight", [ClipCov(**CLIP_COV), EntropyQuantile(0.3)], ids=lambda w: type(w).__name__)
def test_micro_batches_get_the_choice_of_the_whole_minibatch(weight) -> None:
    ctx = cov_context()
    ctx.entropy = -ctx.logp
    weight.observe(ctx)
    whole = weight.weight(ctx)
    for index in (torch.tensor([7, 3]), torch.arange(10, 40)):
        part = make_context(ctx.batch.rows(index), ctx.logp[index], entropy=-ctx.logp[index])
        assert torch.equal(weight.weight(part), whole[index])


def test_future_kl() -> None:
    # half life 1: gamma 1/2. d = [0.1, 0.1]: first 0.15, second 0.1; a fall is held at 1, or at 1 - 0.2
    batch = make_batch([[1, 1], [1, 1]], old_logp=[[-1.0, -1.0], [-1.0, -1.0]])
    ctx = make_context(batch, [[-0.9, -0.9], [-1.0, -2.0]])
    assert FutureKL(1.0).weight(ctx)[0].tolist() == pytest.approx([math.exp(0.15), math.exp(0.1)])
    assert FutureKL(1.0).weight(ctx)[1].tolist() == [1, 1]
    assert FutureKL(1.0, high_only=False).weight(ctx)[1].tolist() == pytest.approx([0.8, 0.8])


def test_future_kl_carries_no_gradient() -> None:
    logp = torch.tensor([[-0.9]], dtype=torch.float64, requires_grad=True)
    assert not FutureKL().weight(make_context(make_batch([[1]], old_logp=[[-1.0]]), logp)).requires_grad


def test_truncated_rows_leave_numerator_and_denominator() -> None:
    """Known fault B09."""
    # token loss 1 everywhere, lengths 2 and 4: 1, not 2 / 6
    batch = make_batch([[1, 1, 0, 0], [1, 1, 1, 1]], truncated=[False, True], advantages=[1.0, 1.0])
    weight = TruncatedMask()
    weight.prepare(batch, Clock(0, 1))
    ctx = make_context(batch, torch.zeros(2, 4, dtype=torch.float64))
    values = torch.ones(2, 4, dtype=torch.float64) * weight.weight(ctx)
    assert TokenMean().reduce(values, ctx.mask, ctx.counts).item() == 1.0
    assert ctx.counts.rows == 1


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (RolloutIS, {"cap": 0.0}),
        (RolloutIS, {"low": 0.5}),
        (RolloutIS, {"low": 3.0, "mode": "mask"}),
        (EntropyQuantile, {"share": 0.0}),
        (OffPolicySequenceMask, {"delta": -1.0}),
        (ClipCov, {"cov_low": 6.0}),
        (ClipCov, {"share": 2.0}),
        (FutureKL, {"half_life": 0.0}),
        (FutureKL, {"clip": 1.0}),
    ],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cls(**options)
