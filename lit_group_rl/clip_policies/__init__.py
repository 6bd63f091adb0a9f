"""The trust region: where the ratio may move."""

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.clip_policies.fixed import FixedClip
from lit_group_rl.clip_policies.none import NoClip

__all__ = ["ClipPolicy", "FixedClip", "NoClip"]
