"""Loss per token to one number."""

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aggregators.fixed_length import FixedLength
from lit_group_rl.aggregators.sequence_mean import SequenceMean
from lit_group_rl.aggregators.sequence_sum import SequenceSum
from lit_group_rl.aggregators.token_mean import TokenMean
from lit_group_rl.aggregators.token_sum import TokenSum

__all__ = ["FixedLength", "LossAggregator", "SequenceMean", "SequenceSum", "TokenMean", "TokenSum"]
