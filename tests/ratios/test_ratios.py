import pytest
import torch

from lit_group_rl.ratios import SequenceRatio, SequenceSumRatio, SequenceTokenRatio, TokenRatio
from lit_group_rl.surrogates import Clipped
from lit_group_rl.types import Bounds
from tests.builders import make_batch, make_context, with_grad

D = torch.tensor([[0.3, -0.1, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0]]).bool()


def test_the_sequence_ratio_is_the_geometric_mean_over_the_tokens_that_count() -> None:
    """Known fault B18: e^0.1 = 1.1052."""
    # (0.3 - 0.1) / 2 = 0.1; with the padding it would be 9.2 / 3
    assert SequenceRatio().log_ratio(D, MASK)[0].tolist() == pytest.approx([0.1, 0.1, 0])
    assert SequenceTokenRatio().log_ratio(D, MASK)[0, :2].tolist() == pytest.approx([0.1, 0.1])
    assert SequenceSumRatio().log_ratio(D, MASK)[0].tolist() == pytest.approx([0.2, 0.2, 0])
    assert torch.equal(TokenRatio().log_ratio(D, MASK), D)


@pytest.mark.parametrize("ratio", [SequenceRatio(), SequenceTokenRatio()])
def test_gspo_loss_and_gradient(ratio) -> None:
    """Known fault B18, the same for both forms."""
    # d = [0.1, 0], s = e^0.05 = 1.051271, A = 2: loss -2.102542, each token's share of its gradient -2 s / 2
    logp = with_grad([[-1.0, -2.0]])
    batch = make_batch([[1, 1]], advantages=[2.0], old_logp=[[-1.1, -2.0]])
    ctx = make_context(batch, logp, ratio=ratio)
    loss = Clipped().loss(ctx, Bounds()).mean()
    loss.backward()
    assert loss.item() == pytest.approx(-2.102542, abs=1e-6)
    assert logp.grad[0].tolist() == pytest.approx([-1.051271, -1.051271], abs=1e-6)


def test_the_sequence_token_gradient_stays_in_its_token() -> None:
    d = D.clone().requires_grad_()
    SequenceTokenRatio().log_ratio(d, MASK)[0, 0].backward()
    assert d.grad.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("ratio", [SequenceRatio(), SequenceSumRatio()])
def test_a_row_without_trained_tokens_is_zero_and_finite(ratio) -> None:
    d = D.clone().requires_grad_()
    out = ratio.log_ratio(d, torch.zeros_like(MASK))
    out.sum().backward()
    assert not out.any()
    assert not d.grad.any()
