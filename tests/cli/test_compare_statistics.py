"""The numbers of a comparison against hand-worked and published ones."""

from __future__ import annotations

import math

import pytest

from lit_group_rl.cli import compare_statistics as cs

# Abramowitz and Stegun, Handbook of Mathematical Functions, table 26.10: two-sided 95 %
PRINTED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228}
PRINTED |= {11: 2.201, 12: 2.179, 15: 2.131, 20: 2.086, 25: 2.060, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}


@pytest.mark.parametrize("df", PRINTED)
def test_t_quantiles_are_those_of_the_printed_table(df):
    assert cs.t_quantile(df) == pytest.approx(PRINTED[df], abs=6e-4)


def test_t_quantiles_of_another_confidence_and_of_no_freedom():
    # the same table, two-sided 99 %: 63.657 and 3.169
    assert cs.t_quantile(1, 0.99) == pytest.approx(63.657, abs=6e-4)
    assert cs.t_quantile(10, 0.99) == pytest.approx(3.169, abs=6e-4)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        cs.t_quantile(0)


def test_the_paired_interval_is_that_of_students_sleep_data():
    # Student 1908, The probable error of a mean, Biometrika 6: extra hours of sleep of ten patients under two drugs.
    # Mean difference 1.58; the 95 % interval, as R's t.test(paired = TRUE) on its data set `sleep` prints it:
    # 0.7001142 to 2.4598858
    one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    found = cs.paired(dict(enumerate(two)), dict(enumerate(one)))
    assert (found.seeds, found.mean) == (10, pytest.approx(1.58))
    assert (found.low, found.high) == (pytest.approx(0.7001142, abs=1e-6), pytest.approx(2.4598858, abs=1e-6))
    assert found.verdict == "likely better"
    assert cs.paired(dict(enumerate(one)), dict(enumerate(two))).verdict == "likely worse"


def test_only_common_seeds_are_paired():
    # seeds 2 and 3: differences 0.1 and 0.3, mean 0.2, sd 0.1414, half width 12.706 * 0.1414 / 1.414 = 1.2706
    found = cs.paired({2: 0.5, 3: 0.8, 9: 0.0}, {1: 0.9, 2: 0.4, 3: 0.5})
    assert (found.seeds, found.mean) == (2, pytest.approx(0.2))
    assert (found.low, found.high) == (pytest.approx(-1.0706, abs=1e-4), pytest.approx(1.4706, abs=1e-4))
    assert found.verdict == "no difference seen"


def test_one_seed_and_no_common_seed_have_no_interval():
    one, none = cs.paired({1: 0.9}, {1: 0.5}), cs.paired({1: 0.9}, {2: 0.5})
    assert (one.mean, one.verdict) == (pytest.approx(0.4), "one seed: no interval")
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert none.verdict == "no common seed"


def test_equal_results_are_no_difference():
    assert cs.paired({1: 0.5, 2: 0.6}, {1: 0.5, 2: 0.6}).verdict == "no difference seen"


CURVE = [(0.0, 0.2), (10.0, 0.6), (30.0, 0.8)]


def test_values_between_points_are_on_the_line_and_beyond_the_ends_flat():
    # halfway from 10 to 30: 0.7
    assert [cs.at(CURVE, x) for x in (-5, 0, 5, 20, 99)] == pytest.approx([0.2, 0.2, 0.4, 0.7, 0.8])
    assert math.isnan(cs.at([], 5))


def test_the_area_is_that_of_the_trapezoids():
    # to 20: (0.2 + 0.6) / 2 * 10 + (0.6 + 0.7) / 2 * 10 = 4 + 6.5, over 20
    assert cs.area(CURVE, 20) == pytest.approx(10.5 / 20)
    # to 50: 4 + 14 + 20 * 0.8, the last value kept
    assert cs.area(CURVE, 50) == pytest.approx(34 / 50)
    assert math.isnan(cs.area([], 20))
    assert math.isnan(cs.area([(0.0, 0.2)], 0))


def test_a_value_is_first_reached_between_points():
    # 0.5 is three quarters of the way from 0.2 to 0.6; 0.7 half of the way from 10 to 30
    assert cs.reaches(CURVE, 0.5) == pytest.approx(7.5)
    assert cs.reaches(CURVE, 0.7) == pytest.approx(20)
    assert cs.reaches(CURVE, 0.1) == 0
    assert cs.reaches(CURVE, 0.9) is None
    # a curve that falls again counts from its first crossing: 0.4 of 0.8 on the way up
    assert cs.reaches([(0, 0.0), (10, 0.8), (20, 0.0), (30, 0.9)], 0.4) == pytest.approx(5)


def test_a_curve_takes_what_is_finite_over_completions():
    rows = {
        0: {"a": 0.1},
        2: {"a": 0.3, "progress/completions": 20.0},
        1: {"b": 1.0, "progress/completions": 10.0},
        3: {"a": math.nan, "progress/completions": 30.0},
        4: {"a": 0.5},
    }
    # step 0 stands at 0 completions; step 1 has no a, step 3 no number, step 4 no place
    assert cs.curve(rows, "a") == [(0.0, 0.1), (20.0, 0.3)]


def test_the_mean_curve_stands_where_all_curves_have_points():
    mean = cs.mean_curve([[(0, 0.0), (10, 1.0)], [(2, 0.5), (8, 0.5)]], points=3)
    # on 2, 4, 6, 8: (0.2 + 0.5) / 2 and so on
    assert mean == [
        (2, pytest.approx(0.35)),
        (4, pytest.approx(0.45)),
        (6, pytest.approx(0.55)),
        (8, pytest.approx(0.65)),
    ]
    assert cs.mean_curve([[], []]) == []
    # one evaluation each: nothing to draw a line between
    assert cs.mean_curve([[(5, 1.0)], [(5, 2.0)]]) == [(5, 1.5)]


def test_smoothing_keeps_a_straight_line_and_narrows_at_the_ends():
    line = [(float(i), float(i)) for i in range(7)]
    assert cs.smooth(line, 5) == line
    # window 3: 0, (0 + 3 + 0) / 3, (3 + 0 + 0) / 3, 0
    assert [y for _, y in cs.smooth([(0, 0), (1, 3), (2, 0), (3, 0)], 3)] == [0, 1, 1, 0]


def test_a_loss_or_gradient_that_is_no_number_is_divergence_and_an_empty_mean_is_not():
    assert cs.finite([{"loss/total": 0.1, "optim/grad_norm": 2.0, "length/correct": math.nan}, {}])
    assert not cs.finite([{"loss/total": 0.1}, {"optim/grad_norm": math.inf}])
    assert not cs.finite([{"loss/total": math.nan}])


def test_the_deviation_is_that_of_a_sample():
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, over 2
    assert cs.spread([1, 2, 6]) == pytest.approx(math.sqrt(7))
    assert cs.spread([1]) is None
