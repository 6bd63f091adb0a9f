import math

import pytest

from lit_group_rl.clip_policies import Divergence, FixedClip, LogSpaceClip, NoClip, RatioRange, SignedRange
from lit_group_rl.clip_policies.divergence import binary_divergence, keep_mask
from lit_group_rl.clip_policies.log_space import one_sided_clip
from lit_group_rl.ratios import SequenceRatio
from lit_group_rl.schedules import Linear
from tests.builders import make_batch, make_context, matrix


def context(advantages: list[float], logp=None, old_logp=None, step: int = 0):
    logp = logp or [[-1.0]] * len(advantages)
    batch = make_batch([[1]] * len(advantages), advantages=advantages, old_logp=old_logp or logp)
    return make_context(batch, logp, step=step)


def test_fixed_clip() -> None:
    bounds = FixedClip(0.2, 0.28, cap=4.0, dual=3.0).bounds(context([1.0]))
    assert (bounds.low.item(), bounds.high.item(), bounds.cap, bounds.dual) == pytest.approx((0.8, 1.28, 4.0, 3.0))


def test_fixed_clip_follows_a_schedule() -> None:
    # halfway from 0.4 to 0.2 after 50 of 100 steps
    assert FixedClip(high=Linear(0.4, 0.2)).bounds(context([1.0], step=50)).high.item() == pytest.approx(1.3)


def test_no_clip() -> None:
    bounds = NoClip().bounds(context([1.0]))
    assert (bounds.low, bounds.high, bounds.cap, bounds.dual, bounds.keep) == (None,) * 5


def test_ratio_range_is_absolute() -> None:
    bounds = RatioRange(0.5, 1.3).bounds(context([1.0]))
    assert (bounds.low.item(), bounds.high.item()) == pytest.approx((0.5, 1.3))
    assert RatioRange(None, None).bounds(context([1.0])).high is None


def test_signed_range_defaults_are_topr() -> None:
    bounds = SignedRange().bounds(context([2.0, -2.0]))
    assert bounds.low[:, 0].tolist() == [1, 0]
    assert bounds.high[:, 0].tolist() == [1, 1]


def test_signed_range_with_four_bounds() -> None:
    bounds = SignedRange(0.9, 2.0, 0.5, 1.5).bounds(context([2.0, -2.0]))
    assert bounds.low[:, 0].tolist() == [0.9, 0.5]
    assert bounds.high[:, 0].tolist() == [2.0, 1.5]


def test_log_space_clip_acts_against_the_advantage_only() -> None:
    d = matrix([[0.6, -0.6]] * 3)
    advantages = matrix([[1.0], [-1.0], [0.0]])
    assert one_sided_clip(d, advantages, 0.4, 0.5).tolist() == [[0.5, -0.6], [0.6, -0.4], [0.6, -0.6]]


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 1.2840), (-1.0, 1.4191)])
def test_gmpo_clips_before_the_mean(advantage: float, expected: float) -> None:
    # A > 0: (0.4 + 0.1) / 2 = 0.25, e^0.25; A < 0: 0.35, e^0.35.  The same as TRL 1.16.
    batch = make_batch([[1, 1]], advantages=[advantage], old_logp=[[-1.0, -1.0]])
    ctx = make_context(batch, [[-0.4, -0.9]], ratio=SequenceRatio(), clip_policy=LogSpaceClip())
    assert ctx.ratio[0, 0].item() == pytest.approx(expected, abs=5e-5)


def test_binary_divergences() -> None:
    new, old = matrix([[0.5]]).log(), matrix([[0.25]]).log()
    assert binary_divergence(new, old, "tv").item() == pytest.approx(0.25)
    # 0.25 ln(0.25 / 0.5) + 0.75 ln(0.75 / 0.5) = -0.173287 + 0.304099
    assert binary_divergence(new, old, "kl").item() == pytest.approx(0.130812, abs=1e-6)
    certain = matrix([[0.0]])
    assert binary_divergence(certain, old, "kl").isfinite().all()
    assert binary_divergence(certain, certain, "kl").item() == 0


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_only_a_move_with_the_advantage_is_stopped(kind: str) -> None:
    # up from 0.25 to 0.5, or down from 0.5 to 0.25: far beyond both thresholds
    up, down = matrix([[0.5]]).log(), matrix([[0.25]]).log()
    keep = [
        keep_mask(new, old, matrix([[a]]), kind, 0.1).item() for new, old in ((up, down), (down, up)) for a in (1, -1)
    ]
    assert keep == [False, True, True, False]


def test_divergence_lets_a_rare_token_multiply_its_probability() -> None:
    # 0.001 -> 0.01 is a ratio of 10 and a move of 0.009
    ctx = context([1.0], [[math.log(0.01)]], [[math.log(0.001)]])
    bounds = Divergence("tv").bounds(ctx)
    assert bounds.keep.all()
    assert bounds.cap == 20.0


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (FixedClip, {"low": -0.1}),
        (FixedClip, {"low": 1.5}),
        (FixedClip, {"high": -0.1}),
        (FixedClip, {"cap": 1.0}),
        (FixedClip, {"dual": 0.5}),
        (RatioRange, {"ratio_max": 0.28}),
        (RatioRange, {"ratio_min": 1.2}),
        (SignedRange, {"negative_max": 0.5}),
        (SignedRange, {"positive_min": 2.0}),
        (LogSpaceClip, {"low": -0.4}),
        (Divergence, {"threshold": 0.0}),
        (Divergence, {"cap": 1.0}),
    ],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cls(**options)
