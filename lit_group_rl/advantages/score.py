"""The score itself as advantage."""

from dataclasses import dataclass

from lit_group_rl.advantages.base import AdvantageEstimator, per_token
from lit_group_rl.types import Advantages, RolloutBatch


@dataclass(frozen=True)
class Score(AdvantageEstimator):
    """A = s: plain REINFORCE without a baseline; with reference answers and score 1 it is supervised training."""

    def estimate(self, batch: RolloutBatch) -> Advantages:
        return Advantages(per_token(batch.totals.nan_to_num(), batch))
