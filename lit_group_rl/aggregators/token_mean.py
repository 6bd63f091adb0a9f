"""Every token weighs the same."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.types import Counts


@dataclass(frozen=True)
class TokenMean(LossAggregator):
    """sum(x m) / sum(m) over the minibatch: long completions weigh more.  DAPO, arXiv:2503.14476, sec. 3.3."""

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        return masked_sum(values, mask) / max(counts.tokens, 1.0)
