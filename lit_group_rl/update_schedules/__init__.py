"""Which models learn at which RL step."""

from lit_group_rl.update_schedules.base import UpdateSchedule

__all__ = ["UpdateSchedule"]
