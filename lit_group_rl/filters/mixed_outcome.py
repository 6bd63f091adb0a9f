"""Dynamic sampling: only groups whose members differ."""

from dataclasses import dataclass

from torch import Tensor

from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.functional.groups import group_is_tied
from lit_group_rl.schedules.base import require
from lit_group_rl.types import RolloutBatch


@dataclass(frozen=True)
class MixedOutcome(GroupFilter):
    """Keeps the groups whose raw scores are not all equal and samples new prompts for the others.

    For binary rewards this is 0 < correct < G.  After ``max_rounds`` the step goes on with the groups it has; it
    never raises and never drops a kept group.  A step without any such group is skipped, and said so.

    Source: DAPO, arXiv:2503.14476, sec. 3.2.
    """

    max_rounds: int = 3
    """Sampling rounds at most, the first included.  The paper samples until the batch is full."""

    needs_group = True

    def __post_init__(self) -> None:
        require(self.max_rounds >= 1, self, "max_rounds", "must be at least 1")

    def keep(self, batch: RolloutBatch) -> Tensor:
        assert batch.scores is not None
        return ~group_is_tied(batch.scores.nan_to_num(), batch.group_ids, batch.counted)
