"""The fault matrix: every row of the reliability plan, how it must be handled, and what provokes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A fault.

    ``kind`` is what must happen: E refused before the first RL step, C told and carried on, R back to the last good
    state, X ended with a checkpoint, N it cannot occur.
    """

    number: str
    kind: str
    fault: str
    lines: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Command lines that must be refused, and what the message must name: field, place, fix."""
    nodes: tuple[str, ...] = ()
    """Tests that provoke it otherwise."""


SMOKE = "fit grpo scale/smoke --trainer.accelerator=cpu"
TABLE = f"{SMOKE} --data.source=Table --data.heldout_size=4 --data.source.path="
REWARD = f"{SMOKE} --model.rewards.exact=FunctionReward --model.rewards.exact.fn=bad_rewards."
POLICY = f"{SMOKE} --model.policy=HFPolicy --model.policy.path="
SURVIVE = "tests/faults/test_matrix.py::test_a_run_survives_what_it_must"


def rows() -> list[Row]:
    """All of them, in order."""
    from tests.faults import matrix_inputs, matrix_run

    return [*matrix_inputs.ROWS, *matrix_run.ROWS]
