"""Clip ranges that follow the rewards: bounds, ties, moving averages, state, and what they amount to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lit_group_rl.advantages import GroupRelative, WinsorisedAdvantage
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.clip_policies import DynamicQuantileClip, DynamicZScoreClip, FixedClip
from lit_group_rl.clip_policies.dynamic import FEATURE, mid_ranks
from lit_group_rl.schedules import Clock
from lit_group_rl.surrogates import Clipped
from tests.builders import make_batch, make_context, with_grad
from tests.tiny_runs import digest, fit

NAN = math.nan
REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=40)


def widths(clip, scores, **changes) -> list[float]:
    batch = make_batch(scores=scores, group_ids=[0] * len(scores), **changes)
    clip.prepare(batch, Clock(0, 1))
    return batch.features[FEATURE].tolist()


def gradient(clip, scores, advantages, ratio: float) -> list[float]:
    """Of the clipped loss by the log-prob, at one ratio for all rows."""
    batch = make_batch(scores=scores, advantages=advantages, old_logp=[[-1.0]] * len(scores))
    clip.prepare(batch, Clock(0, 1))
    logp = with_grad([[-1.0 + math.log(ratio)]] * len(scores))
    ctx = make_context(batch, logp)
    (grad,) = torch.autograd.grad(Clipped().loss(ctx, clip.bounds(ctx)).sum(), logp)
    return grad[:, 0].tolist()


@given(st.lists(REWARDS, min_size=1, max_size=4))
def test_no_width_leaves_floor_and_cap(rollouts: list[list[float]]) -> None:
    z_score, ranks, moving = DynamicZScoreClip(), DynamicQuantileClip(), DynamicQuantileClip(decay=0.5)
    for scores in rollouts:
        assert all(0.1 <= w <= 0.4 for w in widths(z_score, scores))
        for clip in (ranks, moving):
            assert set(widths(clip, scores)) <= {0.1, 0.2, 0.3}


def test_z_score_by_hand() -> None:
    # mean 0.5, deviation 0.5: z is -1 and 1
    assert widths(DynamicZScoreClip(), [0, 1, 0, 1]) == pytest.approx([0.1, 0.3, 0.1, 0.3])
    # one of nine is right: mean 1/9, deviation sqrt(8)/9, z of the right one sqrt(8) = 2.83, held at 2
    assert widths(DynamicZScoreClip(), [1] + [0] * 8)[0] == pytest.approx(0.4)
    # kappa 0.05 spans 0.1 to 0.3
    assert widths(DynamicZScoreClip(slope=0.05), [1] + [0] * 8)[0] == pytest.approx(0.3)
    assert widths(DynamicZScoreClip(), [0.7, 0.7]) == [0.2, 0.2]


def test_z_score_moments_move_once_per_rollout() -> None:
    clip = DynamicZScoreClip(decay=0.5)
    widths(clip, [0, 1, 0, 1])
    # mean 0.5 -> 0.75; E[x^2] 0.5 -> 0.75; variance 0.75 - 0.5625 = 0.1875; z of 1: 0.25 / 0.4330 = 0.5774
    assert widths(clip, [1, 1, 1, 1]) == pytest.approx([0.2 + 0.1 * 0.5773503] * 4)
    batch = make_batch(scores=[0, 1], advantages=[1, 1])
    clip.prepare(batch, Clock(0, 1))
    before = clip.state_dict()
    for _ in range(3):
        clip.bounds(make_context(batch, [[0.0], [0.0]]))
    assert clip.state_dict() == before


def test_rows_that_do_not_count_move_nothing() -> None:
    clip, other = DynamicZScoreClip(), DynamicZScoreClip()
    widths(clip, [0.0, 1.0, NAN, 5.0], mask=[[1], [1], [1], [0]])
    widths(other, [0.0, 1.0])
    assert clip.state_dict() == other.state_dict()


@given(REWARDS)
def test_mid_ranks_are_those_of_counting(scores: list[float]) -> None:
    ranks = mid_ranks(torch.tensor(scores), torch.tensor(scores)).tolist()
    counted = [(sum(s < r for s in scores) + 0.5 * sum(s == r for s in scores)) / len(scores) for r in scores]
    assert ranks == pytest.approx(counted)


@pytest.mark.parametrize("right", [2, 3, 5, 7, 8])
def test_ranks_are_inactive_between_20_and_80_percent_success(right: int) -> None:
    # of 10: mid-rank of the right ones 1 - right / 20 and of the wrong ones (10 - right) / 20
    wide = [0.3 if 1 - right / 20 > 0.8 else 0.2] * right
    narrow = [0.1 if (10 - right) / 20 < 0.2 else 0.2] * (10 - right)
    assert widths(DynamicQuantileClip(), [1] * right + [0] * (10 - right)) == wide + narrow
    assert (set(wide + narrow) == {0.2}) == (4 <= right <= 6)


def test_moving_quantiles_by_hand() -> None:
    clip = DynamicQuantileClip(decay=0.5)
    # of 0 .. 10 the quantiles are 2 and 8
    assert widths(clip, list(range(11))) == [0.1, 0.1, *[0.2] * 7, 0.3, 0.3]
    # then 12 and 18, so 7 and 13 on average
    assert widths(clip, list(range(10, 21))) == [*[0.2] * 4, *[0.3] * 7]


def test_on_policy_it_is_grpo() -> None:
    scores, advantages = [1.0, 0.0, 0.0, 1.0, 0.5], [1.0, -1.0, -0.5, 0.7, 0.1]
    plain = gradient(FixedClip(), scores, advantages, 1.0)
    for clip in (DynamicZScoreClip(), DynamicQuantileClip()):
        assert gradient(clip, scores, advantages, 1.0) == plain == [-a for a in advantages]


def test_off_policy_it_decides_which_rows_are_clipped() -> None:
    scores, advantages = [1.0, 0.5, 0.5, 0.5, 0.0], [1.0] * 5
    # at 1.25 FixedClip stops all, ranks let the best row go on: 0.3 above 0.9, 0.2 between, 0.1 at 0.1
    assert gradient(FixedClip(), scores, advantages, 1.25) == [0] * 5
    assert gradient(DynamicQuantileClip(), scores, advantages, 1.25) == [pytest.approx(-1.25), 0, 0, 0, 0]
    # and at 1.15 they stop the worst
    assert gradient(DynamicQuantileClip(), scores, advantages, 1.15)[-1] == 0
    assert all(gradient(FixedClip(), scores, advantages, 1.15))


@pytest.mark.parametrize("ratio", [0.6, 0.85, 0.95, 1.0, 1.05, 1.25, 1.4])
def test_where_the_tails_are_the_signs_it_is_an_asymmetric_clip(ratio: float) -> None:
    scores, advantages = [1.0, 1.0, 0.0, 0.0], [1.0, 0.8, -1.0, -0.8]
    halves = DynamicQuantileClip(top=0.5, bottom=0.5)
    expected = gradient(FixedClip(low=0.1, high=0.3), scores, advantages, ratio)
    assert gradient(halves, scores, advantages, ratio) == expected


def test_winsorised_by_hand() -> None:
    # advantages -1 -1 -1 3: mean 0, deviation sqrt(3) = 1.732
    class Given(GroupRelative):
        def estimate(self, batch):
            from lit_group_rl.advantages.base import per_token
            from lit_group_rl.types import Advantages

            return Advantages(per_token(batch.totals, batch))

    batch = make_batch(scores=[-1, -1, -1, 3], group_ids=[0] * 4)
    clipped = WinsorisedAdvantage(Given(), k=1.0, decay=0.0).estimate(batch).values[:, 0]
    assert clipped.tolist() == pytest.approx([-1, -1, -1, math.sqrt(3)])
    # the band of the steps before holds the next one
    moving = WinsorisedAdvantage(Given(), k=1.0, decay=0.5)
    moving.estimate(make_batch(scores=[-1, 1], group_ids=[0, 0]))
    # mean 0, variance (1 + 9) / 2
    assert moving.estimate(make_batch(scores=[-3, 3], group_ids=[0, 0])).values[:, 0].tolist() == pytest.approx(
        [-math.sqrt(5), math.sqrt(5)]
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"clip_policy": DynamicZScoreClip},
        {"clip_policy": lambda: DynamicQuantileClip(decay=0.9)},
        {"advantage": lambda: WinsorisedAdvantage(GroupRelative(), k=1.0)},
    ],
)
def test_the_moving_averages_survive_an_interruption(parts: dict, tmp_path) -> None:
    def made() -> dict:
        return {slot: build() for slot, build in parts.items()}

    straight, _ = fit(steps=4, ppo_epochs=2, learning_rate=5e-3, **made())
    fit(steps=2, ppo_epochs=2, learning_rate=5e-3, callbacks=[CheckpointCallback(tmp_path, every=1)], **made())
    resumed, _ = fit(steps=4, ppo_epochs=2, learning_rate=5e-3, resume_from=tmp_path, **made())
    (slot,) = parts
    assert getattr(resumed, slot).state_dict() == getattr(straight, slot).state_dict() != {}
    assert digest(resumed) == digest(straight)


def test_the_width_is_logged() -> None:
    _, log = fit(steps=2, clip_policy=DynamicZScoreClip())
    assert 0.1 <= log[2]["schedule/clip_width"] <= 0.4


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: DynamicZScoreClip(low=0.3), r"middle must lie in \[0.3, 0.4\]"),
        (lambda: DynamicZScoreClip(high=1.0), "high must be below 1"),
        (lambda: DynamicZScoreClip(decay=1.0), "decay"),
        (lambda: DynamicQuantileClip(top=0.6), "top must lie in"),
        (lambda: DynamicQuantileClip(top_width=0.5), r"top_width must lie in \[0, high=0.4\]"),
        (lambda: WinsorisedAdvantage(GroupRelative(), k=0), "k must be above 0"),
    ],
)
def test_bad_options_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
