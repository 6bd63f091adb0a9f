"""No normaliser."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.types import Counts


@dataclass(frozen=True)
class TokenSum(LossAggregator):
    """sum(x m): for terms that carry their own normaliser."""

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        return masked_sum(values, mask)
