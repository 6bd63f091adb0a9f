"""Which models learn at which RL step."""

from lit_group_rl.update_schedules.alternate import Alternate
from lit_group_rl.update_schedules.base import UpdateSchedule
from lit_group_rl.update_schedules.warm_up import CriticWarmUp

__all__ = ["Alternate", "CriticWarmUp", "UpdateSchedule"]
