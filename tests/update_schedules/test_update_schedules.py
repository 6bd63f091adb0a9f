"""Which models learn when; what does not learn stays as it is, its optimizer state too."""

import pytest
import torch

from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.critics import LightCritic
from lit_group_rl.evaluators import DualAgent
from lit_group_rl.rewards import EvaluatorScore
from lit_group_rl.schedules import Clock
from lit_group_rl.types import Recipe
from lit_group_rl.update_schedules import Alternate, CriticWarmUp
from tests.tiny_runs import Digits, fit


def test_the_critic_learns_alone_first():
    schedule = CriticWarmUp(2)
    active = [schedule.active(Clock(step, 9)) for step in range(4)]
    assert active == [{"critic"}, {"critic"}, *[{"policy", "critic", "evaluator"}] * 2]
    assert CriticWarmUp(0).active(Clock(0, 9)) == {"policy", "critic", "evaluator"}


def test_several_warm_ups_come_in_order():
    schedule = Alternate([("policy", 2), ("evaluator", 1)], {"critic": 1, "evaluator": 2})
    names = [next(iter(schedule.active(Clock(step, 9)))) for step in range(8)]
    assert names == ["critic", "evaluator", "evaluator", "policy", "policy", "evaluator", "policy", "policy"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"warm_up": {"critik": 1}}, "warm_up"),
        ({"cycle": [("generator", 1)]}, "cycle"),
        ({"cycle": [("policy", 0)]}, "cycle"),
        ({"cycle": []}, "cycle"),
        ({"cycle": [("evaluator", 1)]}, "cycle"),
        ({"warm_up": {"evaluator": -1}}, "warm_up"),
    ],
)
def test_bad_turns_are_refused(options, named):
    with pytest.raises(ValueError, match=rf"Alternate\({named}="):
        Alternate(**({"cycle": [("policy", 1)]} | options))
    with pytest.raises(ValueError, match="steps"):
        CriticWarmUp(-1)


def test_a_model_that_is_missing_or_never_learns_is_found_before_the_run():
    def problems(schedule, **parts):
        return [p.field for p in schedule.checks(Recipe(parts, 4, 4, 1))]

    turns = Alternate([("evaluator", 1), ("policy", 1)])
    assert problems(turns, evaluator=None) == ["model.update_schedule"]
    assert problems(turns, evaluator=DualAgent()) == []
    assert problems(turns, evaluator=DualAgent(), critic=LightCritic()) == ["model.update_schedule.cycle"]
    assert problems(CriticWarmUp(1), critic=None) == ["model.update_schedule"]


class Snapshots(RunCallback):
    """Weights and optimizer state of both agents after every step."""

    def __init__(self):
        self.steps = {}

    def on_metrics(self, trainer, module, step, metrics):
        state = trainer.optimizers[0].state
        nets = {"policy": module.policy.net, "evaluator": module.models["evaluator"].live}
        self.steps[step] = {
            name: [
                [p.detach().clone(), *(v.clone() for v in state.get(p, {}).values() if isinstance(v, torch.Tensor))]
                for p in net.parameters()
            ]
            for name, net in nets.items()
        }


def same(a, b):
    return all(len(p) == len(q) and all(map(torch.equal, p, q)) for p, q in zip(a, b, strict=True))


def test_the_frozen_agent_stays_bit_identical_with_its_adam_moments():
    snapshots = Snapshots()
    fit(
        evaluator=DualAgent(yes="y", no="n", learning_rate=1e-3, max_accuracy=1.0),
        rewards={"digits": Digits(), "evaluator": EvaluatorScore()},
        update_schedule=Alternate([("policy", 2), ("evaluator", 2)], {"evaluator": 1}),
        steps=6,
        callbacks=[snapshots],
        optimizer=lambda groups: torch.optim.AdamW(groups, weight_decay=0.1),
    )
    who = ["evaluator", "policy", "policy", "evaluator", "evaluator", "policy"]
    for step in range(2, 7):
        for name in ("policy", "evaluator"):
            unchanged = same(snapshots.steps[step - 1][name], snapshots.steps[step][name])
            assert unchanged is (who[step - 1] != name), (step, name)
    # value, step, and both moments: the comparison did see optimizer state
    assert {len(entry) for entry in snapshots.steps[6]["policy"]} == {4}
