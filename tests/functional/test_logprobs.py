import math

import pytest
import torch

from lit_group_rl.functional.logprobs import head_logprobs, logprobs_from_logits


def test_logprob_at_a_temperature() -> None:
    """Known fault B35."""
    # softmax of [1, 0] / 0.5 = [2, 0]: log p0 = -log(1 + e^-2) = -0.126928, log p1 = -2.126928
    weight = torch.tensor([[1.0], [0.0]])
    hidden = torch.ones(2, 1)
    logp, _ = head_logprobs(hidden, weight, None, torch.tensor([0, 1]), temperature=0.5)
    assert logp.tolist() == pytest.approx([-0.126928, -2.126928], abs=1e-6)
    logp, _ = head_logprobs(hidden, weight, None, torch.tensor([0, 1]))
    assert logp.tolist() == pytest.approx([-0.313262, -1.313262], abs=1e-6)


@pytest.mark.parametrize("elements", [1, 1000])
def test_logprob_has_the_sign_of_a_logprob_on_every_path(elements: int) -> None:
    """Known fault B38."""
    logp, entropy = head_logprobs(
        torch.zeros(3, 2), torch.zeros(2, 2), None, torch.zeros(3, dtype=torch.long), entropy=True, elements=elements
    )
    assert logp.tolist() == pytest.approx([-math.log(2)] * 3, abs=1e-6)
    assert entropy.tolist() == pytest.approx([math.log(2)] * 3, abs=1e-6)


def test_entropy_of_a_filtered_distribution_is_not_nan() -> None:
    # two tokens left, 3 : 1 -> -(0.75 ln 0.75 + 0.25 ln 0.25) = 0.562335
    logits = torch.tensor([[math.log(3.0), float("-inf"), 0.0]])
    logp, entropy = logprobs_from_logits(logits, torch.tensor([0]), entropy=True)
    assert logp.item() == pytest.approx(math.log(0.75), abs=1e-6)
    assert entropy.item() == pytest.approx(0.562335, abs=1e-6)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("elements", [1, 12, 40, 77])
def test_chunked_form_equals_the_plain_one_in_value_and_gradient(with_bias: bool, elements: int) -> None:
    generator = torch.Generator().manual_seed(0)
    n, d, v = 7, 5, 11

    def leaves() -> list[torch.Tensor]:
        generator.manual_seed(3)
        return [
            torch.randn(size, generator=generator).requires_grad_() for size in ((n, d), (v, d), *([(v,)] * with_bias))
        ]

    ids = torch.randint(v, (n,), generator=generator)
    up, up_entropy = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
    results = []
    for limit in (elements, n * v):
        tensors = leaves()
        hidden, weight, bias = *tensors[:2], (tensors[2] if with_bias else None)
        logp, entropy = head_logprobs(hidden, weight, bias, ids, temperature=0.7, entropy=True, elements=limit)
        (logp @ up + entropy @ up_entropy).backward()
        results.append((logp.detach(), entropy.detach(), *[x.grad for x in tensors]))
    for chunked, plain in zip(*results, strict=True):
        torch.testing.assert_close(chunked, plain, rtol=1e-5, atol=1e-5)


def test_chunked_gradient_agrees_with_finite_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    ids = torch.tensor([0, 5, 2, 2])

    def total(h: torch.Tensor) -> torch.Tensor:
        logp, entropy = head_logprobs(h, weight, None, ids, temperature=1.3, entropy=True, elements=6)
        return (logp + 0.5 * entropy).sum()

    leaf = hidden.clone().requires_grad_()
    total(leaf).backward()
    step = torch.zeros_like(hidden)
    step[1, 2] = 1e-2  # results are float32, so the step must not be small
    difference = (total(hidden + step) - total(hidden - step)) / 2e-2
    assert leaf.grad[1, 2].item() == pytest.approx(difference.item(), abs=2e-3)


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0 to score tokens, got 0"):
        head_logprobs(torch.zeros(1, 1), torch.zeros(1, 1), None, torch.zeros(1, dtype=torch.long), temperature=0.0)
