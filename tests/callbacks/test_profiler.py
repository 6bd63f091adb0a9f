"""The traces of chosen RL steps."""

import json

import pytest

from lit_group_rl.callbacks.profiler import Profile
from tests.tiny_runs import fit


def test_only_the_chosen_step_is_recorded_and_the_trace_has_its_operators(tmp_path):
    fit(callbacks=[Profile(steps=[2], run_dir=tmp_path)], steps=3)
    assert [p.name for p in (tmp_path / "profile").iterdir()] == ["step-2.pt.trace.json"]
    trace = json.loads((tmp_path / "profile" / "step-2.pt.trace.json").read_text())
    names = {event.get("name", "") for event in trace["traceEvents"]}
    # a rollout (softmax of the draw), an update (backward of it) and an optimizer step
    assert "aten::softmax" in names
    assert any("AddmmBackward" in name or "MmBackward" in name for name in names)
    assert any(name.startswith("Optimizer.step") for name in names)


def test_a_profile_changes_nothing(tmp_path):
    _, plain = fit(steps=2)
    _, traced = fit(callbacks=[Profile(steps=[1, 2], run_dir=tmp_path)], steps=2)
    assert plain[2]["loss/total"] == traced[2]["loss/total"]


@pytest.mark.parametrize("steps", [[], [0, 3]])
def test_steps_that_cannot_be_recorded_are_refused(steps):
    with pytest.raises(ValueError, match="name at least one RL step, counted from 1"):
        Profile(steps=steps)
