"""Token sums over a constant."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.functional.masked import masked_sum
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Counts


@dataclass(frozen=True)
class FixedLength(LossAggregator):
    """mean_i (sum_t x m) / length: no bias towards short right or long wrong answers.

    Source: Dr. GRPO, arXiv:2503.20783, sec. 3 (the constant is the generation budget).
    """

    length: int
    """The constant; the paper takes the longest completion allowed."""

    def __post_init__(self) -> None:
        require(self.length >= 1, self, "length", "must be at least 1")

    def reduce(self, values: Tensor, mask: Tensor, counts: Counts) -> Tensor:
        return masked_sum(values, mask) / (max(counts.rows, 1.0) * self.length)
