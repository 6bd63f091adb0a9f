"""The contract of schedules."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from lit_group_rl.schedules.base import Clock, Schedule
from lit_group_rl.testing.cases import Case, case, restored, run_cases

SCHEDULE: list[Case] = []

METRICS = {
    "reward/mean": 0.5, "reward/accuracy": 0.5, "reward/group_std": 0.3, "policy/entropy": 0.7, "policy/kl_ref": 0.02,
    "group/zero_std_frac": 0.3, "optim/grad_norm": 1.0, "eval/heldout/accuracy": 0.5,
}  # fmt: skip


def check_schedule(component: Schedule, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the schedule keeps the contract of ``schedule``."""
    run_cases(component, SCHEDULE, skip=skip)


@case(SCHEDULE, "finite", "return a float for every step from 0 on, beyond the end too")
def _(component: Schedule) -> None:
    for step in (0, 1, 50, 99, 100, 1000):
        value: Any = component.value(Clock(step, 100))
        number = isinstance(value, int | float)
        assert number, f"at step {step} it gives a {type(value).__name__}"
        assert abs(value) < float("inf"), f"at step {step} it gives {value}"


@case(SCHEDULE, "repeatable", "compute the value from the clock and from what observe has seen, and count nothing")
def _(component: Schedule) -> None:
    first = [component.value(Clock(step, 100)) for step in (0, 7, 99)]
    again = [component.value(Clock(step, 100)) for step in (0, 7, 99)]
    assert first == again, f"asked twice for steps 0, 7, 99 it gives {first}, then {again}"


@case(SCHEDULE, "missing numbers", "look up metrics with 'in' or .get: not every step has every number")
def _(component: Schedule) -> None:
    component.observe({})


@case(SCHEDULE, "memory", "give what observe changes in state_dict, and take it in load_state_dict")
def _(component: Schedule) -> None:
    original = copy.deepcopy(component)
    for k in range(12):
        component.observe({tag: value * (1 + 0.1 * (k % 3)) for tag, value in METRICS.items()})
    again = restored(component, original)
    for one in (component, again):
        one.observe(METRICS)
    found, wanted = again.value(Clock(13, 100)), component.value(Clock(13, 100))
    assert found == wanted, f"after resuming it gives {found}, without interruption {wanted}"
