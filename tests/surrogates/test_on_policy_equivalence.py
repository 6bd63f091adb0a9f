"""With one update per rollout every ratio is 1, and then all trust regions and surrogates are plain policy gradient.

Which is also a warning: a comparison of clip rules with a single update per rollout compares nothing.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl import clip_policies, ratios, surrogates
from lit_group_rl.aggregators import FixedLength, SequenceMean, SequenceSum, TokenMean
from lit_group_rl.clip_policies import ClipPolicy, NoClip
from lit_group_rl.schedules import Clock
from lit_group_rl.surrogates import Surrogate
from tests.builders import make_batch, make_context, with_grad

OPTIONS = {"Quadratic": {"delta": 0.15}}
EXCEPTIONS = {"GroupClassification"}
"""Does not use the advantages at all."""


def parts(package, base: type, leave_out: set[str] = frozenset()) -> list:
    found = [getattr(package, name) for name in package.__all__ if name not in leave_out]
    return [cls(**OPTIONS.get(cls.__name__, {})) for cls in found if issubclass(cls, base) and cls is not base]


SURROGATES = parts(surrogates, Surrogate, EXCEPTIONS)
CLIPS = parts(clip_policies, ClipPolicy)


def name(part: object) -> str:
    return type(part).__name__


def gradient(surrogate, clip, ratio, aggregator, advantages, mask, probabilities) -> torch.Tensor:
    logp = with_grad(probabilities).log().detach().requires_grad_()
    old = logp.detach().clone()
    batch = make_batch(mask, advantages=advantages, scores=advantages, old_logp=old, behaviour_logp=old)
    clip.prepare(batch, Clock(0, 1))
    ctx = make_context(batch, logp, ratio=ratio, clip_policy=clip)
    loss = aggregator.reduce(surrogate.loss(ctx, clip.bounds(ctx)), ctx.mask, ctx.counts)
    return torch.autograd.grad(loss, logp)[0]


def plain(aggregator, advantages, mask) -> torch.Tensor:
    """-A per token, spread by the aggregator: the gradient of a loss that is linear in logp."""
    kept = torch.tensor(mask).bool()
    value = torch.zeros(kept.shape, dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor(advantages, dtype=torch.float64)[:, None]
    batch = make_batch(mask, advantages=advantages)
    loss = aggregator.reduce(-advantage * value, kept, make_context(batch, value).counts)
    return torch.autograd.grad(loss, value)[0]


MASK = [[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]
PROBABILITIES = [[0.9, 0.3, 0.05], [0.5, 0.1, 0.1], [0.999, 0.01, 0.5], [0.5, 0.5, 0.5]]
ADVANTAGES = [1.3, -0.7, 0.4, 2.0]


@pytest.mark.parametrize("surrogate", SURROGATES, ids=name)
@pytest.mark.parametrize("clip", CLIPS, ids=name)
@pytest.mark.parametrize("aggregator", [TokenMean(), SequenceMean(), SequenceSum(), FixedLength(8)], ids=name)
def test_token_ratio(surrogate, clip, aggregator) -> None:
    actual = gradient(surrogate, clip, ratios.TokenRatio(), aggregator, ADVANTAGES, MASK, PROBABILITIES)
    torch.testing.assert_close(actual, plain(aggregator, ADVANTAGES, MASK), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=name)
@pytest.mark.parametrize("clip", CLIPS, ids=name)
@pytest.mark.parametrize("aggregator", [SequenceMean(), SequenceSum()], ids=name)
@pytest.mark.parametrize("ratio", [ratios.SequenceRatio(), ratios.SequenceTokenRatio()], ids=name)
def test_sequence_ratio_under_aggregations_that_weigh_a_row_alike(surrogate, clip, aggregator, ratio) -> None:
    actual = gradient(surrogate, clip, ratio, aggregator, ADVANTAGES, MASK, PROBABILITIES)
    torch.testing.assert_close(actual, plain(aggregator, ADVANTAGES, MASK), rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.floats(-3, 3, allow_nan=False), min_size=4, max_size=4),
    st.lists(st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3), min_size=4, max_size=4),
    st.sampled_from(SURROGATES),
    st.sampled_from(CLIPS),
)
def test_token_ratio_at_any_advantages_and_probabilities(advantages, probabilities, surrogate, clip) -> None:
    actual = gradient(surrogate, clip, ratios.TokenRatio(), TokenMean(), advantages, MASK, probabilities)
    torch.testing.assert_close(actual, plain(TokenMean(), advantages, MASK), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("surrogate", [s for s in SURROGATES if name(s) != "Reinforce"], ids=name)
def test_off_policy_they_differ_from_plain_policy_gradient(surrogate) -> None:
    ratio, component = 1.7, ratios.TokenRatio()
    logp = with_grad([[math.log(0.2)]])
    ctx = make_context(make_batch([[1]], advantages=[1.0], old_logp=[[math.log(0.2 / ratio)]]), logp, ratio=component)
    (grad,) = torch.autograd.grad(surrogate.loss(ctx, NoClip().bounds(ctx)).sum(), logp)
    assert abs(grad.item() + 1) > 0.02
