"""Which groups of a rollout are trained on."""

from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.filters.keep_all import KeepAll
from lit_group_rl.filters.mixed_outcome import MixedOutcome
from lit_group_rl.filters.valid_share import ValidShare

__all__ = ["GroupFilter", "KeepAll", "MixedOutcome", "ValidShare"]
