"""Every completion weighs the same."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.types import Counts


@dataclass(frozen=True)
class SequenceMean(LossAggregator):
    """mean_i (sum_t x m / l_i) over the rows with a trained token.  GRPO, arXiv:2402.03300, eq. 3."""

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        return masked_mean(values, mask, dim=1).sum() / max(counts.rows, 1.0)
