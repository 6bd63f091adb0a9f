import pytest

from lit_group_rl.filters import KeepAll, MixedOutcome, ValidShare
from tests.builders import make_batch

NAN = float("nan")
IDS = [7, 7, 3, 3, 5, 5]


def keep(group_filter, scores: list[float], ids: list[int] = IDS, mask: list | None = None) -> list[bool]:
    return group_filter.keep(make_batch(mask, scores=scores, group_ids=ids)).tolist()


def test_keep_all() -> None:
    assert keep(KeepAll(), [1, 1, 0, 1, NAN, NAN]) == [True] * 6


def test_mixed_outcome_keeps_groups_whose_members_differ() -> None:
    assert keep(MixedOutcome(), [1, 1, 0, 1, 0, 0]) == [False, False, True, True, False, False]
    # partly right answers count as differing; one scored member alone cannot differ
    assert keep(MixedOutcome(), [0.5, 0.6, 1, NAN, 0.7, 0.7]) == [True, True, False, False, False, False]


def test_groups_are_told_by_id_when_rows_are_interleaved() -> None:
    assert keep(MixedOutcome(), [1, 0, 1, 1], [0, 1, 0, 1]) == [False, True, False, True]


def test_mixed_outcome_decides_on_the_raw_score_and_ignores_masked_members() -> None:
    assert keep(MixedOutcome(), [1, 1, 0], [0, 0, 0], [[1], [1], [0]]) == [False] * 3
    batch = make_batch(scores=[0, 0], token_rewards=[[-0.2], [-0.9]])
    assert MixedOutcome().keep(batch).tolist() == [False, False]


def test_valid_share_accepts_a_round_with_enough_signal_as_it_is() -> None:
    scores = [1, 1, 0, 1, 0, 1]  # 4 of 6 rows have a signal
    assert keep(ValidShare(0.6), scores) == [True] * 6
    assert keep(ValidShare(0.8), scores) == [False, False, True, True, True, True]


def test_valid_share_counts_scored_rows_only() -> None:
    # 2 of 4 scored rows have a signal, though 3 of 5 rows stand in the mixed group
    assert keep(ValidShare(0.6), [1, 0, NAN, 0, 0], [0, 0, 0, 1, 1]) == [True] * 3 + [False] * 2


def test_valid_share_of_a_round_without_any_scored_row_keeps_nothing() -> None:
    assert keep(ValidShare(0.0), [NAN] * 6) == [False] * 6


@pytest.mark.parametrize(
    ("cls", "options"),
    [(MixedOutcome, {"max_rounds": 0}), (ValidShare, {"max_rounds": 0}), (ValidShare, {"share": 1.5})],
)
def test_bad_options_are_refused_by_name(cls: type, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        cls(**options)
