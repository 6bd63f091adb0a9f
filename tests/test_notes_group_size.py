"""The group size controller: its trace is a reference vector; here bounds, dead band, budget, state and whole runs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_group_rl.advantages import GPG, GroupRelative, LeaveOneOut, LengthWeighted, MeanScaled, ReinforcePPBaseline
from lit_group_rl.aux_losses import KL
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.samplers import DynamicGroupSampler, GroupSampler
from lit_group_rl.schedules import Clock, Constant, GroupSizeLadder, RaiseWhenSlow
from lit_group_rl.types import Recipe
from tests.builders import make_batch
from tests.tiny_runs import digest, fit

CLOCK = Clock(0, 1)
UP = [(1.0, 0.5), (9.0, 0.5)]
"""Gradient norms 1 and 9: mean 5, deviation sqrt(32), so oscillation 1.13."""
SLOW = [(1.0, 0.5), (1.0, 0.5)]
FINE = [(1.0, 0.1), (1.0, 0.9)]


def show(schedule, *windows) -> float:
    for window in windows:
        for norm, reward in window:
            schedule.observe({"optim/grad_norm": norm, "reward/mean": reward})
    return schedule.value(CLOCK)


@given(st.lists(st.sampled_from([UP, SLOW, FINE]), max_size=12))
def test_sizes_stay_on_the_ladder_and_move_a_rung_at_a_time(windows: list) -> None:
    ladder = GroupSizeLadder(window=2)
    sizes = [8, *(show(ladder, w) for w in windows)]
    rungs = [ladder.ladder.index(s) for s in sizes]
    assert all(abs(a - b) <= 1 for a, b in pairwise(rungs))


def test_it_stops_at_both_ends() -> None:
    assert show(GroupSizeLadder(window=2), *[UP] * 9) == 16
    assert show(GroupSizeLadder(window=2), *[SLOW] * 9) == 4


def test_nothing_happens_inside_the_dead_band() -> None:
    assert show(GroupSizeLadder(window=2), *[FINE] * 9) == 8
    # norms 1 and 1.3: mean 1.15, deviation 0.212, oscillation 0.184: neither calm nor wild, whatever the progress
    between = [(1.0, 0.5), (1.3, 0.5)]
    assert show(GroupSizeLadder(window=2), *[between] * 9) == 8
    assert show(RaiseWhenSlow(window=2), *[between, FINE, UP] * 3) == 0.04


def test_the_coefficient_rises_when_slow_and_not_above_its_limit() -> None:
    assert show(RaiseWhenSlow(window=2), SLOW) == pytest.approx(0.06)
    assert show(RaiseWhenSlow(window=2), *[SLOW] * 9) == 0.2


def test_steps_without_a_signal_are_left_out() -> None:
    ladder = GroupSizeLadder(window=2)
    ladder.observe({"optim/grad_norm": 1.0})
    ladder.observe({"optim/grad_norm": float("nan"), "reward/mean": 0.5})
    assert ladder.state_dict()["rewards"] == []
    # no update moved anything: no oscillation to speak of
    assert show(GroupSizeLadder(window=2), [(0.0, 0.5), (0.0, 0.9)]) == 8


@pytest.mark.parametrize(("size", "prompts"), [(4, 64), (6, 43), (8, 32), (12, 21), (16, 16)])
def test_the_number_of_completions_stays(size: int, prompts: int) -> None:
    sampler = DynamicGroupSampler(group_size=8, controller=Constant(size))
    assert sampler.prompts(CLOCK, 32) == prompts
    # within half a group of 256
    assert abs(sampler.prompts(CLOCK, 32) * sampler.size(CLOCK) - 256) <= size / 2


def test_another_sampler_asks_for_what_the_data_says() -> None:
    assert GroupSampler().prompts(CLOCK, 32) == 32


@pytest.mark.parametrize(
    "estimator", [GroupRelative(), LeaveOneOut(), LengthWeighted(), GPG(), MeanScaled(), ReinforcePPBaseline()]
)
def test_estimators_take_groups_of_unequal_size(estimator) -> None:
    scores, ids = [1, 0, 0, 1, 1, 0, 1, 0, 0, 0], [0] * 4 + [1] * 6
    both = estimator.estimate(make_batch(scores=scores, group_ids=ids)).values[:, 0]
    assert both.isfinite().all()
    if isinstance(estimator, GroupRelative | LeaveOneOut | LengthWeighted | MeanScaled):
        apart = [
            estimator.estimate(make_batch(scores=scores[s], group_ids=ids[s])).values[:, 0].tolist()
            for s in (slice(0, 4), slice(4, 10))
        ]
        assert both.tolist() == pytest.approx(apart[0] + apart[1])


def parts() -> dict:
    rule = {"window": 2, "osc_high": 0.0, "osc_low": 0.0}
    controller = GroupSizeLadder(ladder=[2, 4, 8], start=4, **rule)
    return {
        "sampler": DynamicGroupSampler(group_size=4, max_new_tokens=6, controller=controller),
        "aux_losses": {"kl": KL(RaiseWhenSlow(**rule))},
    }


def test_a_run_changes_its_groups_and_keeps_its_budget() -> None:
    # above an oscillation of 0 always: 4 for two steps, then 8
    module, log = fit(steps=4, **parts())
    assert [log[s]["group/size"] for s in (1, 2, 3, 4)] == [4, 4, 8, 8]
    assert [log[s]["progress/completions"] for s in (1, 2, 3, 4)] == [16, 32, 48, 64]
    assert [log[s]["progress/prompts"] for s in (1, 2, 3, 4)] == [4, 8, 10, 12]
    assert module.sampler.size(module.clock) == 8


def test_the_controller_survives_an_interruption(tmp_path) -> None:
    straight, _ = fit(steps=4, **parts())
    fit(steps=3, callbacks=[CheckpointCallback(tmp_path, every=1)], **parts())
    resumed, log = fit(steps=4, resume_from=tmp_path, **parts())
    assert log[4]["group/size"] == 8
    assert digest(resumed) == digest(straight)


def test_two_rules_in_one_recipe_are_pointed_out() -> None:
    beta = RaiseWhenSlow(window=8)
    sampler = DynamicGroupSampler(controller=GroupSizeLadder(window=4))
    recipe = Recipe({"sampler": sampler, "aux_losses": {"kl": KL(beta)}}, 8, 8, 1)
    (problem,) = beta.checks(recipe)
    assert problem.field == "model.sampler.controller"
    assert not list(RaiseWhenSlow().checks(Recipe({"sampler": sampler}, 8, 8, 1)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GroupSizeLadder(ladder=[8, 4]), "must rise"),
        (lambda: GroupSizeLadder(ladder=[1, 4], start=4), "at least 2"),
        (lambda: GroupSizeLadder(start=5), "start must be one of"),
        (lambda: GroupSizeLadder(window=1), "window"),
        (lambda: GroupSizeLadder(osc_low=0.9), "osc_low"),
        (lambda: RaiseWhenSlow(factor=0.5), "factor"),
        (lambda: RaiseWhenSlow(start=0.3), "high"),
    ],
)
def test_bad_options_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
