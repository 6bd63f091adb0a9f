"""RL step to value, accepted wherever a float is."""

from lit_group_rl.schedules.adaptive_entropy import AdaptiveEntropy
from lit_group_rl.schedules.adaptive_kl import AdaptiveKL
from lit_group_rl.schedules.base import Clock, Number, Schedule
from lit_group_rl.schedules.constant import Constant
from lit_group_rl.schedules.cosine import Cosine
from lit_group_rl.schedules.exponential import Exponential
from lit_group_rl.schedules.group_size import GroupSizeLadder, RaiseWhenSlow
from lit_group_rl.schedules.linear import Linear
from lit_group_rl.schedules.warmup import WarmUp

__all__ = [
    "AdaptiveEntropy",
    "AdaptiveKL",
    "Clock",
    "Constant",
    "Cosine",
    "Exponential",
    "GroupSizeLadder",
    "Linear",
    "Number",
    "RaiseWhenSlow",
    "Schedule",
    "WarmUp",
]
