"""How far the policy has moved since the rollout, per token or per sequence."""

from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.ratios.noisy import NoisyRatio
from lit_group_rl.ratios.sequence import SequenceRatio
from lit_group_rl.ratios.sequence_sum import SequenceSumRatio
from lit_group_rl.ratios.sequence_token import SequenceTokenRatio
from lit_group_rl.ratios.token import TokenRatio

__all__ = ["ImportanceRatio", "NoisyRatio", "SequenceRatio", "SequenceSumRatio", "SequenceTokenRatio", "TokenRatio"]
