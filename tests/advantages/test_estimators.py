"""What all published estimators promise, whatever their formula."""

import pytest
import torch

from lit_group_rl.advantages import (
    GAE,
    GDPO,
    GPG,
    AdvantageEstimator,
    GreedyBaseline,
    GroupRelative,
    LeaveOneOut,
    LengthWeighted,
    MeanScaled,
    PassAtK,
    PassAtKTopTwo,
    ReinforcePP,
    ReinforcePPBaseline,
    Score,
)
from lit_group_rl.types import BASELINE, POLICY
from tests.builders import make_batch

ESTIMATORS = [
    GAE(),
    GDPO({"main": 1.0}),
    GPG(),
    GreedyBaseline(),
    GroupRelative(),
    LeaveOneOut(),
    LengthWeighted(),
    MeanScaled(),
    PassAtK(2),
    PassAtKTopTwo(),
    ReinforcePP(),
    ReinforcePPBaseline(),
    Score(),
]
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)

MASK = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
NAN = float("nan")


def whole(scores: list[float] | None = None, order: list[int] | None = None):
    """Group 4: rows 0 to 2, unscored row 3, masked row 4, greedy row 6; group 9: row 5 alone."""
    scores = scores or [1.0, 0.0, 0.0, NAN, 7.0, 1.0, 0.5]
    batch = make_batch(
        MASK,
        scores=scores,
        group_ids=[4, 4, 4, 4, 4, 9, 4],
        row_role=[POLICY] * 6 + [BASELINE],
        solved=[s >= 1 for s in scores],
        rewards={"main": scores},
        values=[[0.1, 0.2, 9.0], [0.3, 9.0, 9.0], [0.1, 0.4, 0.2], [0.5, 0.5, 9.0], [9.0] * 3, [0.2, 9, 9], [9.0] * 3],
    )
    return batch if order is None else batch.rows(torch.tensor(order))


@every_estimator
def test_rows_and_tokens_that_do_not_count_get_exact_zero(estimator: AdvantageEstimator) -> None:
    values = estimator.estimate(whole()).values
    batch = whole()
    assert values.shape == batch.mask.shape
    assert values.isfinite().all()
    assert not values[~(batch.mask & batch.counted[:, None])].any()
    assert values[batch.counted].any()


@every_estimator
def test_scores_of_rows_that_do_not_count_change_nothing(estimator: AdvantageEstimator) -> None:
    changed = whole([1.0, 0.0, 0.0, NAN, -100.0, 1.0, 0.5])
    assert torch.equal(estimator.estimate(changed).values, estimator.estimate(whole()).values)


@every_estimator
def test_permuting_rows_only_permutes(estimator: AdvantageEstimator) -> None:
    order = [5, 2, 6, 0, 4, 1, 3]
    permuted = estimator.estimate(whole(order=order)).values
    torch.testing.assert_close(permuted, estimator.estimate(whole()).values[order], rtol=1e-12, atol=1e-12)


@every_estimator
def test_a_batch_in_which_no_row_counts_is_all_zero(estimator: AdvantageEstimator) -> None:
    values = estimator.estimate(whole([NAN] * 7)).values
    assert values.isfinite().all()
    assert not values.any()


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if type(e).needs_group], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("reward", [0.1, 0.35, 0.7, 1.0])
def test_a_tied_group_gets_exact_zeros(estimator: AdvantageEstimator, reward: float) -> None:
    scores = torch.full((8,), reward, dtype=torch.float32)
    batch = make_batch(
        [[1, 1], [1, 0]] * 4, scores=scores.tolist(), solved=[reward >= 1] * 8, rewards={"main": scores.tolist()}
    )
    assert not estimator.estimate(batch).values.any()
