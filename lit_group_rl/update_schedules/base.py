"""Which models learn at which RL step."""

from abc import abstractmethod

from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Component


class UpdateSchedule(Component):
    """Chooses among 'policy', 'critic' and 'evaluator'; whoever is not chosen stays bit-identical in that step."""

    @abstractmethod
    def active(self, clock: Clock) -> frozenset[str]:
        """Names of the models that learn in this RL step."""
