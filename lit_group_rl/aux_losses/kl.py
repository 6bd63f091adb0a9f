"""Divergence from the reference policy as a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.functional.kl import ESTIMATORS
from lit_group_rl.schedules.base import Number, require_number
from lit_group_rl.types import LossContext


@dataclass(frozen=True)
class KL(AuxLoss):
    """coef * estimator(logp - ref_logp), per token.

        k1: d          k2: d^2 / 2          k3: exp(-d) + d - 1          abs: |d|
        k1+, k3+: that value, with the gradient of k2

    k3 as a loss has the gradient of the forward KL; k2, k1+, k3+ that of the reverse KL.  ``ratio_weighted``
    multiplies by the ratio (with gradient), which makes k3 the reverse KL: DeepSeek-V3.2, arXiv:2512.02556.

    Source: GRPO, arXiv:2402.03300, eq. 4 (k3, 0.04).
    """

    coef: Number = 0.04
    """beta; DeepSeekMath uses 0.04."""
    estimator: Literal["k1", "k2", "k3", "abs", "k1+", "k3+"] = "k3"
    """Which estimate of the divergence."""
    ratio_weighted: bool = False
    """Multiply by the importance ratio."""

    needs = frozenset({"ref_logp"})

    def __post_init__(self) -> None:
        require_number(self, "coef", low=0.0)

    def term(self, ctx: LossContext) -> Tensor:
        assert ctx.batch.ref_logp is not None
        value = ESTIMATORS[self.estimator](ctx.logp - ctx.batch.ref_logp.to(ctx.logp.dtype))
        return ctx.ratio * value if self.ratio_weighted else value
