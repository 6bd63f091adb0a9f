"""Bindings of the reference vectors for critics, evaluator and update schedules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from lit_group_rl.advantages import GroupRelative, LightCriticBaseline
from lit_group_rl.advantages.light_critic import shrinkage
from lit_group_rl.critics import LightCritic
from lit_group_rl.evaluators.judges import verdict_log_odds
from lit_group_rl.functional.ema import ema
from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.functional.replay import replay_weights
from lit_group_rl.functional.value_loss import value_loss
from lit_group_rl.schedules import Clock
from lit_group_rl.update_schedules import Alternate
from tests.builders import make_batch, matrix

Vector = dict[str, Any]


def clipped_value_loss(v: Vector) -> Vector:
    new, old, returns = (matrix(v["inputs"][k]) for k in ("values_new", "values_old", "returns"))
    each = value_loss(new, returns, old, v["params"]["clip"])
    return {"loss": masked_mean(each, matrix(v["inputs"]["mask"]).bool())}


def evaluator_logits(v: Vector) -> Vector:
    odds = verdict_log_odds(matrix(v["inputs"]["logit_yes"]), matrix(v["inputs"]["logit_no"]))
    return {"prob": odds.sigmoid(), "log_odds": odds}


def staleness(v: Vector) -> Vector:
    weights = replay_weights(torch.tensor(v["inputs"]["ages"]), v["params"]["half_life"], v["params"]["max_staleness"])
    return {"weight": weights, "prob": weights / weights.sum()}


def moving_average(v: Vector) -> Vector:
    average, out = v["params"]["init"], []
    for value in v["inputs"]["values"]:
        average = ema(average, value, v["params"]["decay"])
        out.append(average)
    return {"ema": out}


def prompt_average_is_noop(v: Vector) -> Vector:
    rewards, ids = matrix(v["inputs"]["rewards"]), v["inputs"]["group_ids"]
    running = matrix(v["inputs"]["prompt_ema"])[torch.tensor(ids)]
    smoothed = ema(running, rewards, v["params"]["mix"])

    def advantages(scores: torch.Tensor) -> torch.Tensor:
        return GroupRelative(eps=0.0).estimate(make_batch(scores=scores.tolist(), group_ids=ids)).values[:, 0]

    return {"advantages_raw": advantages(rewards), "advantages_smoothed": advantages(smoothed)}


def phases(v: Vector) -> Vector:
    name = {"generator": "policy", "evaluator": "evaluator"}
    cycle = [(name[who], steps) for who, steps in v["params"]["cycle"]]
    schedule = Alternate(warm_up=v["params"]["warmup"], cycle=cycle)
    back = {ours: theirs for theirs, ours in name.items()}
    active = [schedule.active(Clock(step, 100)) for step in v["inputs"]["steps"]]
    assert all(len(names) == 1 for names in active)
    return {"active": [back[next(iter(names))] for names in active]}


def light_baseline(v: Vector) -> Vector:
    i = v["inputs"]
    if v["params"]["mix"] != "shrinkage":
        batch = make_batch(i["mask"], scores=i["rewards"], group_ids=i["group_ids"], values=i["values"])
        return {"advantages": LightCriticBaseline(mix=v["params"]["mix"]).estimate(batch).values}
    values = matrix(i["prompt_values"])
    batch = make_batch(scores=i["rewards"], group_ids=i["group_ids"], values=values[:, None])
    error = v["params"]["critic_mse"]
    weight, others = shrinkage(batch.scores, batch.group_ids, batch.counted, error)
    estimator = LightCriticBaseline(shrinkage=True)
    estimator.load_state_dict({"error": error})
    return {
        "weight": weight,
        "baseline": weight * values + (1 - weight) * others,
        "advantages": estimator.estimate(batch).values[:, 0],
    }


def light_parameters(v: Vector) -> Vector:
    critic = LightCritic(width=v["params"]["width"])
    critic.build(SimpleNamespace(hidden_width=v["params"]["d_model"]))
    return {"params": sum(p.numel() for p in critic.parameters())}


BINDINGS = {
    "critic.value_loss": clipped_value_loss,
    "reward.evaluator_logits": evaluator_logits,
    "replay_buffer.staleness": staleness,
    "ema": moving_average,
    "ema.identity": prompt_average_is_noop,
    "update_schedule.alternate": phases,
    "advantage.light_critic": light_baseline,
    "critic.light_mlp": light_parameters,
}
