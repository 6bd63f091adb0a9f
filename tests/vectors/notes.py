"""Bindings of the reference vectors that describe the systems of the interview notes, those with a model left out."""

from __future__ import annotations

from typing import Any

import torch

from lit_group_rl.advantages import BetweenGroup, GroupRelative
from lit_group_rl.advantages.winsorised import winsorise
from lit_group_rl.aggregators import TokenMean
from lit_group_rl.aux_losses import GroupSupervised
from lit_group_rl.clip_policies import DynamicQuantileClip, DynamicZScoreClip, FixedClip
from lit_group_rl.clip_policies.dynamic import FEATURE, mid_ranks
from lit_group_rl.functional.groups import group_is_tied, group_mean
from lit_group_rl.functional.moments import MovingMoments, batch_moments
from lit_group_rl.functional.quality import standardised_between_groups
from lit_group_rl.functional.similarity import cosine_matrix, member_scores
from lit_group_rl.loss_weights import GaussianNoise
from lit_group_rl.loss_weights.gaussian_noise import lognormal_weight
from lit_group_rl.ratios import NoisyRatio, TokenRatio
from lit_group_rl.rewards import GroupFirstLast, GroupNGram, GroupRougeL
from lit_group_rl.rewards.runner import total_score
from lit_group_rl.schedules import Clock, GroupSizeLadder, Linear, RaiseWhenSlow
from lit_group_rl.schedules.group_size import oscillation, progress
from lit_group_rl.surrogates import Clipped, Reinforce
from lit_group_rl.types import Bounds
from tests.builders import make_batch, make_context, matrix, with_grad

Vector = dict[str, Any]
QUALITY = "quality"


def consistency(similarity: torch.Tensor) -> Vector:
    members = member_scores(similarity)
    return {"similarity": similarity, "group_score": members.mean(), "member_score": members}


def text_score(score: Any) -> Any:
    return lambda v: consistency(score.similarities([v["inputs"]["texts"]])[0])


def of_groups(values: list[float], group_ids: list[int]) -> list[float]:
    """One number per group as a column over its rows."""
    return [values[g] for g in group_ids]


def relative(v: Vector, scores: torch.Tensor) -> torch.Tensor:
    i, p = v["inputs"], v["params"]
    ids = i.get("group_ids", [0] * len(i["rewards"]))
    estimator = GroupRelative(ddof=p.get("ddof", 1), eps=p.get("eps", 0.0))
    return estimator.estimate(make_batch(scores=scores.tolist(), group_ids=ids)).values[:, 0]


def group_supervised_identity(v: Vector) -> Vector:
    """The two no-ops and identities of A.2."""
    if "theta" in v["inputs"]:
        return gradient_identity(v)
    i = v["inputs"]
    rewards, quality = matrix(i["rewards"]), matrix(of_groups(i["group_score"], i["group_ids"]))
    shaped = total_score({"r": rewards, "q": quality}, {"r": 1.0, "q": v["params"]["lam"]})
    return {"advantages_without": relative(v, rewards), "advantages_with": relative(v, shaped)}


def gradient_identity(v: Vector) -> Vector:
    """Every group of n draws from a categorical policy, weighed by its probability."""
    theta, similarity, n = with_grad(v["inputs"]["theta"]), matrix(v["inputs"]["similarity"]), v["params"]["n"]
    k = len(theta)
    groups = torch.cartesian_prod(*[torch.arange(k)] * n)
    logp = theta.log_softmax(0)
    chance = logp[groups].sum(1).exp()
    members = torch.stack([member_scores(similarity[g][:, g]) for g in groups])
    expected = (chance * members.mean(1)).sum()
    (exact,) = torch.autograd.grad(expected, theta)
    # d log pi(y) / d theta = onehot(y) - p
    scores = torch.nn.functional.one_hot(groups, k).double() - logp.detach().exp()
    chance = chance.detach()[:, None]
    by_group = members.mean(1)[:, None] * scores.sum(1)
    by_member = 2 / n * (members[..., None] * scores).sum(1)
    mean = [(chance * x).sum(0) for x in (by_group, by_member)]
    var = [(chance * (x - m) ** 2).sum(0) for x, m in zip((by_group, by_member), mean, strict=True)]
    return {
        "expected_consistency": expected,
        "exact_gradient": exact,
        "group_score_estimator": mean[0],
        "member_score_estimator": mean[1],
        "var_group": var[0],
        "var_member": var[1],
    }


def group_supervised_nll(v: Vector) -> Vector:
    i = v["inputs"]
    batch = make_batch(
        i["mask"],
        advantages=i["advantages"],
        group_ids=i["group_ids"],
        rewards={QUALITY: of_groups(i["group_score"], i["group_ids"])},
        scores=[0.0] * len(i["mask"]),
    )
    aux = GroupSupervised(quality=QUALITY, coef=v["params"]["lam"])
    aux.prepare(batch, Clock(0, 1))
    logp = with_grad(i["logp"])
    ctx = make_context(batch, logp)
    value = aux.aggregator().reduce(aux.term(ctx), aux.selection(batch), ctx.counts)
    weighted = ctx.clock.at(aux.coef) * value
    weighted.backward()
    return {"aux": value, "weighted": weighted, "grad_logp": logp.grad}


def between_group(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    quality = of_groups(i["group_score"], i["group_ids"])
    batch = make_batch(scores=i["rewards"], group_ids=i["group_ids"], rewards={QUALITY: quality})
    inside = GroupRelative(ddof=1, eps=p["eps"])
    estimator = BetweenGroup(inside, QUALITY, strength=p["lam"], ddof=p["ddof"], eps=p["eps"])
    z = standardised_between_groups(
        matrix(quality), torch.ones(len(quality), dtype=torch.bool), batch.group_ids, ddof=p["ddof"], eps=p["eps"]
    )
    return {"group_term": z[[0, -1]], "advantages": estimator.estimate(batch).values[:, 0]}


def member_consistency(v: Vector) -> Vector:
    i = v["inputs"]
    columns = {"r": matrix(i["rewards"]), "c": matrix(i["member_score"])}
    shaped = total_score(columns, {"r": 1.0, "c": v["params"]["lam"]})
    return {"shaped": shaped, "advantages": relative(v, shaped)}


def dynamic_zscore(v: Vector) -> Vector:
    p, rewards = v["params"], v["inputs"]["rewards"]
    clip = DynamicZScoreClip(p["eps0"], p["kappa"], p["eps_min"], p["eps_max"], p["z_max"], decay=0.9)
    batch = make_batch(scores=rewards, group_ids=[0] * len(rewards), advantages=rewards)
    # moments that a batch cannot move: nothing in it counts
    clip.load_state_dict({"mean": p["mean"], "variance": p["std"] ** 2, "seen": True})
    eps = clip.widths(batch.scores, torch.zeros_like(batch.counted))
    batch.features[FEATURE] = eps
    bounds = clip.bounds(make_context(batch, torch.zeros(len(rewards), 1, dtype=torch.float64)))
    z = ((matrix(rewards) - p["mean"]) / p["std"]).clamp(-p["z_max"], p["z_max"])
    return {"z": z, "eps": eps, "low": bounds.low[:, 0], "high": bounds.high[:, 0]}


def dynamic_quantile(v: Vector) -> Vector:
    p, rewards = v["params"], matrix(v["inputs"]["rewards"])
    clip = DynamicQuantileClip(
        p["top"], p["bottom"], p["eps_top"], p["eps_bottom"], p["eps_mid"], high=p["eps_max"], decay=None
    )
    return {"rank": mid_ranks(rewards, rewards), "eps": clip.widths(rewards, torch.ones_like(rewards).bool())}


def ema_moments(v: Vector) -> Vector:
    moments = MovingMoments(v["params"]["decay"])
    trace = []
    for batch in v["inputs"]["batches"]:
        values = matrix(batch)
        moments.update(values, torch.ones_like(values).bool())
        trace.append([moments.mean, moments.std])
    return {"mean_std": trace}


def advantage_clip(v: Vector) -> Vector:
    values, k = matrix(v["inputs"]["advantages"]), v["params"]["k"]
    every = torch.ones_like(values).bool()
    mean, std = batch_moments(values, every)
    return {"low": mean - k * std, "high": mean + k * std, "clipped": winsorise(values, every, mean, std, k)}


def policy_loss(v: Vector, clip: Any, weight: Any = None, ratio: Any = None, features: Any = ()) -> Vector:
    i = v["inputs"]
    batch = make_batch(i["mask"], advantages=i["advantages"], old_logp=i["old_logp"], scores=i["advantages"])
    batch.features.update(features)
    clip.prepare(batch, Clock(0, 1))
    logp = with_grad(i["logp"])
    ctx = make_context(batch, logp, ratio=ratio)
    values = Clipped().loss(ctx, clip.bounds(ctx))
    if weight is not None:
        values = values * weight.weight(ctx)
    loss = TokenMean().reduce(values, ctx.mask, ctx.counts)
    loss.backward()
    return {"loss": loss, "grad_logp": logp.grad}


def equals_clip_higher(v: Vector) -> Vector:
    p, a = v["params"], matrix(v["inputs"]["advantages"])
    wide = torch.where(a > 0, p["eps_top"], p["eps_bottom"])

    class Split(DynamicQuantileClip):
        """The tails meet at an advantage of 0."""

        def widths(self, scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
            return wide

    asymmetric = FixedClip(low=p["eps_bottom"], high=p["eps_top"])
    return {
        "loss_per_sample_clip": policy_loss(v, Split())["loss"],
        "loss_clip_higher": policy_loss(v, asymmetric)["loss"],
    }


def gaussian_noise(v: Vector) -> Vector:
    sigma = v["params"]["sigma"]
    weight = lognormal_weight(matrix(v["inputs"]["xi"]), sigma)
    result = policy_loss(v, FixedClip(), GaussianNoise(sigma), features={"gradient_noise": weight})
    # exp(sigma^2) - 1, from the moments of a log-normal of mean 1: E[w^2] = w(2 xi)'s scale
    variance = lognormal_weight(torch.zeros(1, dtype=torch.float64), sigma) ** -2 - 1
    return result | {"weight": weight, "variance_of_weight": variance[0]}


def noisy_ratio(v: Vector) -> Vector:
    p = v["params"]
    shift = p["sigma"] * matrix(v["inputs"]["xi"]) - p["sigma"] ** 2 / 2
    ratio = NoisyRatio(TokenRatio(), p["sigma"])
    return policy_loss(v, FixedClip(p["eps_low"], p["eps_high"]), ratio=ratio, features={"ratio_noise": shift})


def noise_identity(v: Vector) -> Vector:
    """Noise on the log-prob itself: another value, the same gradient."""
    i = v["inputs"]
    noise = v["params"]["sigma"] * matrix(i["xi"])[:, None]
    losses, grads = [], []
    for shift in (torch.zeros_like(noise), noise):
        batch = make_batch(i["mask"], advantages=i["advantages"])
        logp = with_grad(i["logp"])
        ctx = make_context(batch, logp + shift)
        loss = TokenMean().reduce(Reinforce().loss(ctx, Bounds()), ctx.mask, ctx.counts)
        loss.backward()
        losses.append(float(loss.detach()))
        grads.append(logp.grad)
    return {"grad_without": grads[0], "grad_with": grads[1], "loss_shift": losses[1] - losses[0]}


def dynamic_n(v: Vector) -> Vector:
    p, i = v["params"], v["inputs"]
    rule = {k: p[k] for k in ("window", "osc_high", "osc_low", "min_progress")}
    size = GroupSizeLadder(ladder=p["ladder"], start=p["start"], **rule)
    beta = RaiseWhenSlow(start=p["beta"], factor=p["beta_factor"], high=p["beta_max"], **rule)
    trace = []
    for norms, rewards in zip(i["grad_norm_windows"], i["reward_windows"], strict=True):
        for norm, reward in zip(norms, rewards, strict=True):
            for schedule in (size, beta):
                schedule.observe({"optim/grad_norm": norm, "reward/mean": reward})
        clock = Clock(0, 1)
        trace.append([oscillation(norms), progress(rewards), size.value(clock), beta.value(clock)])
    return {"trace_osc_progress_n_beta": trace}


def baseline_variance(v: Vector) -> Vector:
    """Moments over all outcomes of n draws, each weighed by its chance."""
    p = v["inputs"]["p"]
    variance, dead = [], []
    for n in v["inputs"]["n"]:
        outcomes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * n)
        chance = torch.where(outcomes > 0, p, 1 - p).prod(1)
        groups = torch.arange(len(outcomes)).repeat_interleave(n)
        means = group_mean(outcomes.flatten(), groups)[::n]
        variance.append(float((chance * means**2).sum() - (chance * means).sum() ** 2))
        tied = group_is_tied(outcomes.flatten(), groups)[::n]
        dead.append(float(chance[tied].sum()))
    return {"reward_variance": p - p**2, "variance_of_group_mean": variance, "prob_zero_variance_group": dead}


def linear(v: Vector) -> Vector:
    schedule = Linear(**v["params"])
    return {"value": [schedule.value(Clock(step, 1000)) for step in v["inputs"]["step"]]}


BINDINGS = {
    "group_score.rouge_l": text_score(GroupRougeL()),
    "group_score.bigram_f1": text_score(GroupNGram(n=2)),
    "group_score.first_last_rouge_l": text_score(GroupFirstLast()),
    "group_score.cosine": lambda v: consistency(cosine_matrix(matrix(v["inputs"]["embeddings"]))),
    "group_supervised.identity": group_supervised_identity,
    "aux_loss.group_supervised_nll": group_supervised_nll,
    "advantage.between_group": between_group,
    "reward.member_consistency": member_consistency,
    "trust_region.dynamic_zscore": dynamic_zscore,
    "trust_region.dynamic_quantile": dynamic_quantile,
    "ema.moments": ema_moments,
    "advantage.winsorise": advantage_clip,
    "trust_region.identity": equals_clip_higher,
    "schedule.linear": linear,
    "loss_weight.gaussian_noise": gaussian_noise,
    "ratio.noise": noisy_ratio,
    "noise.identity": noise_identity,
    "schedule.group_size": dynamic_n,
    "grpo.identity": baseline_variance,
}
