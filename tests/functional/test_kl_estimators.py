"""Values: e^-0.5 = 0.606531, e^0.5 = 1.648721."""

import math

import pytest
import torch

from lit_group_rl.functional.kl import ESTIMATORS

EXPECTED = {  # at log-ratio d = 0.5 and -0.5
    "k1": (0.5, -0.5),
    "k2": (0.125, 0.125),
    "k3": (0.606531 + 0.5 - 1, 1.648721 - 0.5 - 1),
    "abs": (0.5, 0.5),
    "k1+": (0.5, -0.5),
    "k3+": (0.106531, 0.148721),
}
GRADIENT = {
    "k1": (1.0, 1.0),
    "k2": (0.5, -0.5),
    "k3": (1 - 0.606531, 1 - 1.648721),
    "abs": (1.0, -1.0),
    "k1+": (0.5, -0.5),
    "k3+": (0.5, -0.5),
}


def test_every_name_is_covered_here() -> None:
    assert EXPECTED.keys() == GRADIENT.keys() == ESTIMATORS.keys()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_value_and_gradient(name: str) -> None:
    """Known fault B20."""
    d = torch.tensor([0.5, -0.5], dtype=torch.float64, requires_grad=True)
    value = ESTIMATORS[name](d)
    value.sum().backward()
    assert value.tolist() == pytest.approx(EXPECTED[name], abs=1e-6)
    assert d.grad.tolist() == pytest.approx(GRADIENT[name], abs=1e-6)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_zero_where_the_policies_agree(name: str) -> None:
    assert ESTIMATORS[name](torch.zeros(3)).tolist() == [0, 0, 0]


def test_k3_is_never_negative_and_stays_finite_for_an_absurd_token() -> None:
    d = torch.linspace(-500, 50, 200, dtype=torch.float64, requires_grad=True)
    value = ESTIMATORS["k3"](d)
    assert (value >= 0).all()
    assert value.max() <= math.exp(20)
    value.sum().backward()
    # minimising must never push a token that is rarer than under the reference further down
    assert (d.grad[d < 0] <= 0).all()
