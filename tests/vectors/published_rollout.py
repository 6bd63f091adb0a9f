"""Bindings of the reference vectors that act on a rollout: advantages, rewards, schedules."""

from __future__ import annotations

from typing import Any

import torch

from lit_group_rl.advantages import (
    GAE,
    GDPO,
    GPG,
    GreedyBaseline,
    GroupRelative,
    LeaveOneOut,
    LengthWeighted,
    MeanScaled,
    PassAtK,
    PassAtKTopTwo,
    ReinforcePP,
    ReinforcePPBaseline,
)
from lit_group_rl.advantages.gdpo import normalised_sum
from lit_group_rl.advantages.gpg import gradient_scale
from lit_group_rl.advantages.reinforce_pp import rewards_per_token
from lit_group_rl.functional.kl import k1
from lit_group_rl.functional.pass_at_k import none_right
from lit_group_rl.functional.returns import discounted_return, length_adaptive_lambda
from lit_group_rl.rewards.soft_overlong import soft_overlong
from lit_group_rl.schedules import AdaptiveKL, Clock
from lit_group_rl.schedules.adaptive_entropy import applied_and_next
from lit_group_rl.types import BASELINE, POLICY
from tests.builders import make_batch, matrix

Vector = dict[str, Any]


def per_row(estimator: Any, **fields: Any) -> torch.Tensor:
    """The advantages of one-token rows, [B]."""
    return estimator.estimate(make_batch(**fields)).values[:, 0]


def group_relative(v: Vector) -> Vector:
    p = v["params"]
    scale = {"group": "group_std", "none": "none"}.get(p["scale"])
    if scale is None:
        scale = {"raw_rewards": "batch_std", "centred_rewards": "centered_batch_std"}[p["batch_std_of"]]
    options = {k: p[k] for k in ("ddof", "eps") if k in p}
    estimator = GroupRelative(divide_by=scale, **options)
    return {"advantages": per_row(estimator, scores=v["inputs"]["rewards"], group_ids=v["inputs"]["group_ids"])}


def leave_one_out(v: Vector) -> Vector:
    return {"advantages": per_row(LeaveOneOut(), scores=v["inputs"]["rewards"], group_ids=v["inputs"]["group_ids"])}


def greedy_baseline(v: Vector) -> Vector:
    i = v["inputs"]
    b = len(i["rewards"])
    greedy = {g: r for g, r in zip(i["group_ids"], i["greedy_rewards"], strict=True)}
    values = per_row(
        GreedyBaseline(),
        mask=[[1]] * b + [[0]] * len(greedy),
        scores=i["rewards"] + list(greedy.values()),
        group_ids=i["group_ids"] + list(greedy),
        row_role=[POLICY] * b + [BASELINE] * len(greedy),
    )
    assert not values[b:].any()
    return {"advantages": values[:b]}


def length_weighted(v: Vector) -> Vector:
    i = v["inputs"]
    mask = [[t < n for t in range(max(i["lengths"]))] for n in i["lengths"]]
    return {"advantages": per_row(LengthWeighted(), mask=mask, scores=i["rewards"], group_ids=i["group_ids"])}


def gpg(v: Vector) -> Vector:
    i = v["inputs"]
    return {
        "alpha": gradient_scale(matrix(i["rewards"]), torch.tensor(i["group_ids"])),
        "advantages": per_row(GPG(rescale=v["params"]["age"]), scores=i["rewards"], group_ids=i["group_ids"]),
    }


def pass_at_k(v: Vector) -> Vector:
    i, k = v["inputs"], v["params"]["k"]
    values = per_row(PassAtK(k), scores=i["rewards"], group_ids=i["group_ids"], solved=i["rewards"])
    n, right = len(i["rewards"]), int(sum(i["rewards"]))
    fail = none_right(torch.tensor([n]), torch.tensor([n - right]), k)
    return {
        "group_mean": 1 - fail[0],
        "group_std": (fail * (1 - fail)).sqrt()[0],
        "adv_positive": values[i["rewards"].index(1.0)],
        "adv_negative": values[i["rewards"].index(0.0)],
        "advantages": values,
    }


def pass_at_k_top2(v: Vector) -> Vector:
    i = v["inputs"]
    estimator = PassAtKTopTwo(eps=v["params"]["eps"])
    return {"advantages": per_row(estimator, scores=i["rewards"], group_ids=i["group_ids"])}


def mean_scaled(v: Vector) -> Vector:
    return {"advantages": per_row(MeanScaled(), scores=v["inputs"]["rewards"], group_ids=v["inputs"]["group_ids"])}


def gdpo(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    columns = {f"reward{k}": column for k, column in enumerate(zip(*i["reward_components"], strict=True))}
    weights = {f"reward{k}": w for k, w in enumerate(p["weights"])}
    ids = torch.tensor(i["group_ids"])
    everyone = torch.ones_like(ids, dtype=torch.bool)
    tensors = {name: matrix(list(column)) for name, column in columns.items()}
    scores = [0.0] * len(ids)
    return {
        "weighted_sum": normalised_sum(tensors, weights, ids, everyone, ddof=p["ddof"], eps=p["eps"]),
        "advantages": per_row(
            GDPO(weights, ddof=p["ddof"], eps=p["eps"]), scores=scores, group_ids=i["group_ids"], rewards=columns
        ),
    }


def reinforce_pp(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    penalty = -p["kl_beta"] * k1(matrix(i["old_logp"]) - matrix(i["ref_logp"]))
    batch = make_batch(i["mask"], scores=i["rewards"], token_rewards=penalty)
    rewards = rewards_per_token(batch)
    estimator = ReinforcePP(gamma=p["gamma"], ddof=p["ddof"], eps=p["eps_in_var"])
    return {
        "token_rewards": rewards,
        "returns": discounted_return(rewards, batch.mask, p["gamma"]),
        "advantages": estimator.estimate(batch).values,
    }


def reinforce_pp_baseline(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    batch = make_batch(i["mask"], scores=i["rewards"], group_ids=i["group_ids"])
    return {"advantages": ReinforcePPBaseline(ddof=p["ddof"], eps=p["eps_in_var"]).estimate(batch).values}


def gae(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    adaptive = p.get("lam_policy") == "length_adaptive"
    options = {"critic_lam": p["lam_value"], "length_alpha": p["alpha"]} if adaptive else {"lam": p["lam"]}
    estimator = GAE(gamma=p["gamma"], whiten=p["whiten"], **options)
    scores = [0.0] * len(i["mask"])
    result = estimator.estimate(
        make_batch(i["mask"], scores=scores, token_rewards=i["token_rewards"], values=i["values"])
    )
    out = {"advantages": result.values, "returns": result.returns}
    if adaptive:
        out["lam_policy"] = length_adaptive_lambda(torch.tensor(i["lengths"]), p["alpha"])
    return out


def lambda_of_length(v: Vector) -> Vector:
    return {"lam": length_adaptive_lambda(torch.tensor(v["inputs"]["lengths"]), v["params"]["alpha"])}


def overlong(v: Vector) -> Vector:
    p = v["params"]
    return {"reward": soft_overlong(torch.tensor(v["inputs"]["lengths"]), p["l_max"], p["l_cache"])}


def adaptive_kl(v: Vector) -> Vector:
    p, coefs = v["params"], []
    schedule = AdaptiveKL(p["init"], target=p["target"], gain=v["inputs"]["n"][0] / p["horizon"])
    for kl in v["inputs"]["kl"]:
        schedule.observe({"policy/kl_ref": kl})
        coefs.append(schedule.value(Clock(0, 1)))
    return {"coef": coefs}


def adaptive_entropy(v: Vector) -> Vector:
    p, coef, trace = v["params"], v["params"]["init"], []
    for entropy in v["inputs"]["entropy"]:
        applied, after = applied_and_next(
            coef, entropy, target=p["target"], delta=p["delta"], low=p["min"], high=p["max"]
        )
        trace.append({"entropy": entropy, "applied": applied, "next": after})
        coef = after
    return {"trace": trace}


BINDINGS = {
    "advantage.grpo": group_relative,
    "advantage.rloo": leave_one_out,
    "advantage.remax": greedy_baseline,
    "advantage.opo": length_weighted,
    "advantage.gpg": gpg,
    "advantage.passk": pass_at_k,
    "advantage.passk_top2": pass_at_k_top2,
    "advantage.maxrl": mean_scaled,
    "advantage.gdpo": gdpo,
    "advantage.reinforce_pp": reinforce_pp,
    "advantage.reinforce_pp_baseline": reinforce_pp_baseline,
    "advantage.gae": gae,
    "advantage.gae.length_adaptive_lambda": lambda_of_length,
    "reward.soft_overlong": overlong,
    "schedule.adaptive_kl": adaptive_kl,
    "schedule.adaptive_entropy": adaptive_entropy,
}
