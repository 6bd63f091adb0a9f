"""A completion weighs by its length."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.types import Counts


@dataclass(frozen=True)
class SequenceSum(LossAggregator):
    """mean_i (sum_t x m) over the rows with a trained token.  RLOO, arXiv:2402.14740 (the completion is one action)."""

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        return masked_sum(values, mask) / max(counts.rows, 1.0)
