"""Contracts of the slots, to test components of your own with: ``check_advantage(MedianBaseline())``.

Each function runs the cases of one slot on a small rollout and raises ContractError with one line per broken case: what
was seen, and how to mend it.  They need no test framework.  docs/extend.md lists the cases.
"""

from lit_group_rl.testing.cases import ContractError
from lit_group_rl.testing.losses import check_aggregator, check_aux_loss, check_loss_weight
from lit_group_rl.testing.rewards import check_reward
from lit_group_rl.testing.rollout import check_advantage, check_filter, check_shaper
from lit_group_rl.testing.schedules import check_schedule
from lit_group_rl.testing.surrogate import check_surrogate
from lit_group_rl.testing.trust_region import check_clip_policy, check_ratio

__all__ = [
    "ContractError",
    "check_advantage",
    "check_aggregator",
    "check_aux_loss",
    "check_clip_policy",
    "check_filter",
    "check_loss_weight",
    "check_ratio",
    "check_reward",
    "check_schedule",
    "check_shaper",
    "check_surrogate",
]
