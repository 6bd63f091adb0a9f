"""A group size that changes over the run, at a constant number of completions per step."""

from __future__ import annotations

from dataclasses import dataclass, field

from lit_group_rl.samplers.group import GroupSampler
from lit_group_rl.schedules.base import Clock, Schedule, require


@dataclass(frozen=True)
class DynamicGroupSampler(GroupSampler):
    """Draws as many completions of a prompt as a schedule says, of as many prompts as keep the budget.

        prompts = max(1, round(prompts_per_step * group_size / size))

    So runs with and without it compare at an equal number of completions.
    """

    controller: Schedule = field(kw_only=True)
    """Completions per prompt, rounded; ``group_size`` only sets the budget beside ``data.prompts_per_step``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isinstance(self.controller, Schedule), self, "controller", "must be a schedule, e.g. GroupSizeLadder")

    def size(self, clock: Clock) -> int:
        return max(1, round(clock.at(self.controller)))

    def prompts(self, clock: Clock, prompts_per_step: int) -> int:
        return max(1, round(prompts_per_step * self.group_size / self.size(clock)))
