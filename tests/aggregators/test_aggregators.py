import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lit_group_rl.aggregators import FixedLength, SequenceMean, SequenceSum, TokenMean, TokenSum
from tests.builders import counts_of, matrix, with_grad

ALL = [TokenMean(), SequenceMean(), SequenceSum(), FixedLength(4), TokenSum()]
every_aggregator = pytest.mark.parametrize("aggregator", ALL, ids=lambda a: type(a).__name__)


def reduce(aggregator, values, mask) -> float:
    mask = torch.tensor(mask).bool()
    return aggregator.reduce(matrix(values), mask, counts_of(mask, torch.zeros(len(mask)))).item()


def test_token_mean_divides_and_sums_the_same_tokens() -> None:
    """Known fault B07."""
    mask = torch.tensor([[1, 0], [1, 0]]).bool()
    values = with_grad([[2.0, 70.0], [4.0, -30.0]])
    loss = TokenMean().reduce(values, mask, counts_of(mask, torch.zeros(2)))
    loss.backward()
    assert loss.item() == 3.0
    assert values.grad.tolist() == [[0.5, 0], [0.5, 0]]


@pytest.mark.parametrize(
    ("aggregator", "expected"),
    [
        (SequenceMean(), 0.0),  # (-1 + 1) / 2
        (TokenMean(), 0.5),  # (-1 + 3) / 4
        (FixedLength(4), 0.25),  # (-1 / 4 + 3 / 4) / 2
        (SequenceSum(), 1.0),  # (-1 + 3) / 2
        (TokenSum(), 2.0),
    ],
)
def test_objectives_differ_at_the_first_on_policy_step(aggregator, expected: float) -> None:
    """Known fault B10."""
    # ratio 1, lengths 1 and 3, advantages 1 and -1
    assert reduce(aggregator, [[-1.0, 0, 0], [1.0, 1.0, 1.0]], [[1, 0, 0], [1, 1, 1]]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregator", "expected"),
    [(SequenceMean(), 0.0), (TokenMean(), -1 / 3), (FixedLength(8), -0.1875), (SequenceSum(), -1.5)],
)
def test_golden_values_of_another_trainer(aggregator, expected: float) -> None:
    # TRL 1.16: ratio 1, A = [1, -1], lengths 6 and 3, length limit 8
    values = [[-1.0] * 6, [1.0] * 6]
    assert reduce(aggregator, values, [[1] * 6, [1, 1, 1, 0, 0, 0]]) == pytest.approx(expected)


@every_aggregator
def test_rows_without_a_trained_token_do_not_count(aggregator) -> None:
    mask = [[1, 1], [1, 0]]
    one = reduce(aggregator, [[1.0, 2.0], [6.0, 9.0]], mask)
    assert reduce(aggregator, [[1.0, 2.0], [6.0, 9.0], [50.0, float("nan")]], [*mask, [0, 0]]) == one


@every_aggregator
def test_nothing_to_train_on_gives_zero(aggregator) -> None:
    assert reduce(aggregator, [[1.0, float("nan")]], [[0, 0]]) == 0.0


@every_aggregator
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 8))
def test_the_cut_into_micro_batches_has_no_effect(aggregator, lengths: list[int], size: int) -> None:
    mask = torch.tensor([[t < n for t in range(3)] for n in lengths])
    values = torch.arange(3.0 * len(lengths), dtype=torch.float64).reshape(-1, 3).sin().requires_grad_()
    counts = counts_of(mask, torch.zeros(len(mask)))
    whole = aggregator.reduce(values, mask, counts)
    cut = sum(aggregator.reduce(v, m, counts) for v, m in zip(values.split(size), mask.split(size), strict=True))
    torch.testing.assert_close(cut, whole, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(x, values)[0] for x in (cut, whole)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_two_processes_see_the_mean_over_all_tokens() -> None:
    # TRL 1.16, 6 and 2 tokens with A = 1: each process's share times 2 is -1.5 and -0.5, their mean -1
    mask = torch.tensor([[1] * 6, [1, 1, 0, 0, 0, 0]]).bool()
    counts = counts_of(mask, torch.zeros(2))
    shares = [2 * TokenMean().reduce(-torch.ones(1, 6), mask[i : i + 1], counts).item() for i in (0, 1)]
    assert shares == pytest.approx([-1.5, -0.5])


def test_a_length_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"FixedLength\(length=0\): length must be at least 1"):
        FixedLength(0)
