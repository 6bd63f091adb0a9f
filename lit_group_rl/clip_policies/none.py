"""No trust region."""

from dataclasses import dataclass

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.types import Bounds, LossContext


@dataclass(frozen=True)
class NoClip(ClipPolicy):
    """The ratio may move anywhere."""

    binds = False

    def bounds(self, ctx: LossContext) -> Bounds:
        return Bounds()
