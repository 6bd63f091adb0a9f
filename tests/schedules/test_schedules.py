import math

import pytest

from lit_group_rl.schedules import AdaptiveEntropy, AdaptiveKL, Clock, Constant, Cosine, Exponential, Linear, WarmUp


def trace(schedule, steps: list[int], total: int = 100) -> list[float]:
    return [schedule.value(Clock(step, total)) for step in steps]


def test_a_clock_reads_numbers_and_schedules_alike() -> None:
    assert Clock(3, 10).at(0.5) == 0.5
    assert Clock(50, 100).at(Linear(0.0, 1.0)) == 0.5


def test_constant() -> None:
    assert trace(Constant(0.3), [0, 99]) == [0.3, 0.3]


def test_linear_over_the_run_and_over_its_own_steps() -> None:
    assert trace(Linear(0.2, 0.01), [0, 50, 100, 120]) == pytest.approx([0.2, 0.105, 0.01, 0.01])
    assert trace(Linear(1.0, 0.0, steps=4), [0, 1, 4, 50]) == pytest.approx([1.0, 0.75, 0.0, 0.0])


def test_cosine() -> None:
    # (1 + cos(pi / 3)) / 2 = 0.75 at a third of the way
    assert trace(Cosine(1.0, 0.0, steps=3), [0, 1, 3, 9]) == pytest.approx([1.0, 0.75, 0.0, 0.0])


def test_exponential() -> None:
    assert trace(Exponential(1.0, 0.01, steps=2), [0, 1, 2, 5]) == pytest.approx([1.0, 0.1, 0.01, 0.01])


def test_warm_up_moves_at_the_first_step_and_hands_over() -> None:
    assert trace(WarmUp(1.0, 4), [0, 1, 3, 4, 50]) == pytest.approx([0.25, 0.5, 1.0, 1.0, 1.0])
    assert trace(WarmUp(Linear(1.0, 0.0), 2), [0, 50]) == pytest.approx([0.5, 0.5])


def test_adaptive_kl_follows_the_divergence_within_a_bounded_step() -> None:
    schedule = AdaptiveKL(1.0, target=0.1)
    schedule.observe({"policy/kl_ref": 0.11})  # +10%: 1 + 0.1 * 0.1
    assert schedule.value(Clock(1, 9)) == pytest.approx(1.01)
    schedule.observe({"policy/kl_ref": 99.0})  # clipped at +20%
    assert schedule.value(Clock(2, 9)) == pytest.approx(1.01 * 1.02)
    schedule.observe({"reward/mean": 1.0})  # not logged in this step: stays
    assert schedule.value(Clock(3, 9)) == pytest.approx(1.01 * 1.02)


def test_adaptive_entropy_acts_only_while_entropy_is_short() -> None:
    schedule = AdaptiveEntropy(target=0.5, start=0.01, delta=0.005, high=0.02)
    seen = [schedule.value(Clock(0, 9))]
    for entropy in (0.4, 0.5, 0.4, 0.6, 0.4):
        schedule.observe({"policy/entropy": entropy})
        seen.append(schedule.value(Clock(0, 9)))
    # 0.015, 0.02, capped at 0.02, off above the target (0.015 inside), 0.02
    assert seen == pytest.approx([0.01, 0.015, 0.02, 0.02, 0.0, 0.02])


@pytest.mark.parametrize("make", [lambda: AdaptiveKL(1.0, target=0.1), lambda: AdaptiveEntropy(target=0.5, start=0.01)])
def test_adaptive_schedules_survive_an_interruption(make) -> None:
    metrics = {"policy/kl_ref": 0.3, "policy/entropy": 0.7}
    one, two, fresh = make(), make(), make()
    one.observe(metrics)
    two.load_state_dict(one.state_dict())
    assert one.value(Clock(1, 9)) == two.value(Clock(1, 9))
    for schedule in (one, two, fresh):
        schedule.observe(metrics | {"policy/entropy": 0.4})
    assert one.value(Clock(2, 9)) == two.value(Clock(2, 9)) != fresh.value(Clock(2, 9))


@pytest.mark.parametrize(
    ("cls", "options", "name"),
    [
        (Constant, {"constant": math.nan}, "constant"),
        (Linear, {"start": math.inf, "end": 0.0}, "start"),
        (Linear, {"start": 1.0, "end": 0.0, "steps": 0}, "steps"),
        (Cosine, {"start": 1.0, "end": 0.0, "steps": -1}, "steps"),
        (Exponential, {"start": 0.0, "end": 1.0}, "start"),
        (WarmUp, {"target": 1.0, "steps": 0}, "steps"),
        (AdaptiveKL, {"start": 1.0, "target": 0.0}, "target"),
        (AdaptiveKL, {"start": 1.0, "target": 1.0, "gain": 0.0}, "gain"),
        (AdaptiveEntropy, {"target": 1.0, "delta": 0.0}, "delta"),
        (AdaptiveEntropy, {"target": 1.0, "start": 2.0}, "start"),
    ],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{cls.__name__}\({name}="):
        cls(**options)
