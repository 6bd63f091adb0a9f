"""Estimators of the KL divergence from a reference, per token of samples drawn from the policy."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

MAX_EXPONENT = 20.0
"""-d is clamped there, so that one absurd token cannot make the loss infinite."""


def k1(log_ratio: Tensor) -> Tensor:
    """d = logp - ref_logp.  Unbiased, may be negative; as a loss its expected gradient is 0 (arXiv:2512.21852)."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """d^2 / 2.  Biased value, gradient of the reverse KL."""
    return 0.5 * log_ratio**2


def k3(log_ratio: Tensor) -> Tensor:
    """exp(-d) + d - 1.  Unbiased and never negative; gradient of the forward KL.  GRPO, arXiv:2402.03300 eq. 4."""
    # the linear term is clamped too: alone it would push the token further away from the reference
    log_ratio = log_ratio.clamp(min=-MAX_EXPONENT)
    return (-log_ratio).exp() + log_ratio - 1


def absolute(log_ratio: Tensor) -> Tensor:
    """|d|."""
    return log_ratio.abs()


def straight_through(value: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The value of another estimator with the gradient of k2, so of the reverse KL ("k1+", "k3+")."""

    def estimator(log_ratio: Tensor) -> Tensor:
        gradient = k2(log_ratio)
        return gradient + (value(log_ratio) - gradient).detach()

    return estimator


ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": absolute,
    "k1+": straight_through(k1),
    "k3+": straight_through(k3),
}
