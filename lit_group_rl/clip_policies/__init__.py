"""The trust region: where the ratio may move."""

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.clip_policies.divergence import Divergence
from lit_group_rl.clip_policies.dynamic import DynamicQuantileClip, DynamicZScoreClip
from lit_group_rl.clip_policies.fixed import FixedClip
from lit_group_rl.clip_policies.log_space import LogSpaceClip
from lit_group_rl.clip_policies.none import NoClip
from lit_group_rl.clip_policies.ratio_range import RatioRange
from lit_group_rl.clip_policies.signed_range import SignedRange

__all__ = [
    "ClipPolicy",
    "Divergence",
    "DynamicQuantileClip",
    "DynamicZScoreClip",
    "FixedClip",
    "LogSpaceClip",
    "NoClip",
    "RatioRange",
    "SignedRange",
]
