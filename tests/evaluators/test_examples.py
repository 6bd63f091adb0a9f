"""Labels and the replay buffer."""

import pytest
import torch

from lit_group_rl.evaluators.examples import (
    Example,
    ReplayBuffer,
    adversarial_examples,
    outcome_examples,
    preference_examples,
    reference_rows,
    token_rows,
)
from tests.builders import make_batch

A, B, C, D = (1,), (2, 2), (3, 3, 3), (4,)


def example(step, row=A):
    return Example(row, (), 1.0, step)


def test_outcomes_label_the_rows_that_may_be_seen():
    assert outcome_examples([A, B, C], [True, False, True], [True, True, False], 5) == [
        [Example(A, (), 1.0, 5)], [Example(B, (), 0.0, 5)], [],
    ]  # fmt: skip


def test_the_reference_is_right_and_the_sample_wrong():
    assert adversarial_examples([A, B], [C, None], 2) == [[Example(A, (), 0.0, 2), Example(C, (), 1.0, 2)], []]


def test_a_right_row_beats_a_wrong_one_of_its_group():
    rows, right, groups = [A, B, C, D], [True, False, False, True], [0, 0, 0, 1]
    found = [preference_examples(rows, right, [True] * 4, groups, [key] * 4, 3) for key in range(4)]
    assert {f[0][0].second for f in found} == {B, C}
    assert all(f[0][0].first == A and f[0][0].label == 1.0 for f in found)
    assert all(f[1:] == [[], [], []] for f in found)  # losers, and a group without any
    assert preference_examples(rows, right, [True, False, False, True], groups, [0] * 4, 3) == [[], [], [], []]


def test_rows_hold_no_padding_and_keep_their_end():
    batch = make_batch([[1, 1, 0], [1, 1, 1]])
    batch.prompt_ids = torch.tensor([[0, 7], [8, 9]])
    batch.prompt_mask = torch.tensor([[False, True], [True, True]])
    batch.completion_ids = torch.tensor([[3, 1, 0], [4, 5, 1]])
    assert token_rows(batch, [6], 99) == [(7, 3, 1, 6), (8, 9, 4, 5, 1, 6)]
    assert token_rows(batch, [], 3) == [(7, 3, 1), (4, 5, 1)]


def test_a_group_has_one_reference_if_the_data_have_an_answer():
    batch = make_batch([[1]] * 3, group_ids=[4, 4, 5])
    batch.samples = [
        s.__class__("", "", answer, {}, 1, False) for s, answer in zip(batch.samples, ["12", "12", None], strict=True)
    ]
    assert reference_rows(batch, lambda text: [int(c) for c in text], [9], 99) == {4: (1, 1, 2, 9)}


def test_the_oldest_leaves_first():
    buffer = ReplayBuffer(3, 8, 32)
    buffer.push(example(step) for step in range(5))
    assert [e.step for e in buffer.examples] == [2, 3, 4]


def test_state_survives_as_plain_data():
    buffer = ReplayBuffer(4, 8, 32)
    assert buffer.state_dict() == {}
    buffer.push([Example(A, B, 1.0, 3), Example(C, (), 0.0, 4)])
    other = ReplayBuffer(4, 8, 32)
    other.push([example(0)])
    other.load_state_dict(buffer.state_dict())
    assert list(other.examples) == list(buffer.examples)


def test_examples_that_are_too_old_are_never_drawn():
    buffer = ReplayBuffer(9, 1.0, 10)
    buffer.push([example(0, B), example(5, C)])
    assert {e.first for e in buffer.draw(11, torch.linspace(0, 0.999, 50))} == {C}  # ages 11 and 6
    assert buffer.draw(16, torch.rand(5)) == []


@pytest.mark.parametrize(("share", "per_fresh"), [(1.0, 0.0), (0.5, 1.0), (0.25, 3.0), (0.4, 1.5)])
def test_the_fresh_share_is_kept_on_average(share, per_fresh):
    buffer = ReplayBuffer(9, 8.0, 32)
    buffer.push([example(0), example(1)])
    found = buffer.companions(list(range(4000)), share, 2)
    # at worst a fair coin per row: standard deviation of the mean 0.5 / sqrt(4000) = 0.008
    assert sum(map(len, found)) / len(found) == pytest.approx(per_fresh, abs=0.032)


def test_what_goes_with_a_row_depends_on_its_key_alone():
    buffer = ReplayBuffer(9, 8.0, 32)
    buffer.push(example(step, (step,)) for step in range(9))
    together = buffer.companions([11, 22, 33], 0.3, 9)
    assert [buffer.companions([key], 0.3, 9)[0] for key in (11, 22, 33)] == together
    assert buffer.companions([], 0.3, 9) == []
    assert ReplayBuffer(9, 8.0, 32).companions([1, 2], 0.3, 9) == [[], []]


@pytest.mark.parametrize("option", ["capacity", "half_life", "max_staleness"])
def test_bad_sizes_are_refused(option):
    with pytest.raises(ValueError, match=option):
        ReplayBuffer(**({"capacity": 1, "half_life": 1.0, "max_staleness": 1} | {option: 0}))
