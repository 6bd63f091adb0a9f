"""Bindings of the reference vectors of auxiliary losses and loss weights."""

from __future__ import annotations

from typing import Any

import torch

from lit_group_rl.aggregators import TokenMean
from lit_group_rl.aux_losses import KL, KLCov
from lit_group_rl.clip_policies import NoClip
from lit_group_rl.functional.kl import ESTIMATORS
from lit_group_rl.functional.logprobs import logprobs_from_logits
from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.functional.selection import covariance, quantile
from lit_group_rl.loss_weights import EntropyQuantile, FutureKL, OffPolicySequenceMask, RolloutIS
from lit_group_rl.loss_weights.clip_cov import clip_cov_candidates
from lit_group_rl.loss_weights.future_kl import future_kl
from lit_group_rl.loss_weights.rollout_is import rollout_weight
from lit_group_rl.surrogates import Unclipped
from tests.builders import make_batch, make_context, matrix, with_grad
from tests.vectors.published_update import aggregator, first_token

Vector = dict[str, Any]


def kl(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    fields = {name: i[name] for name in ("old_logp", "ref_logp") if name in i}
    logp = with_grad(i["logp"])
    ctx = make_context(make_batch(i["mask"], **fields), logp)
    values = KL(estimator=p["estimator"], ratio_weighted=p.get("importance_weight") == "ratio").term(ctx)
    mean = aggregator(p["aggregate"], p).reduce(values, ctx.mask, ctx.counts)
    (grad,) = torch.autograd.grad(mean, logp)
    return {"per_token": torch.where(ctx.mask, values, 0.0), "mean": mean, "grad_logp": grad}


def kl_identity(v: Vector) -> Vector:
    theta, ref = with_grad(v["inputs"]["theta"]), matrix(v["inputs"]["ref_logits"]).log_softmax(0)
    logp = theta.log_softmax(0)
    reverse, forward = (logp.exp() * (logp - ref)).sum(), (ref.exp() * (ref - logp)).sum()
    out: Vector = {"kl_reverse": reverse, "kl_forward": forward}
    out["grad_reverse_kl"] = torch.autograd.grad(reverse, theta, retain_graph=True)[0]
    out["grad_forward_kl"] = torch.autograd.grad(forward, theta, retain_graph=True)[0]
    for name in ("k1", "k2", "k3"):
        expected = (logp.exp().detach() * ESTIMATORS[name](logp - ref)).sum()
        out[f"E_grad_{name}"] = torch.autograd.grad(expected, theta, retain_graph=True)[0]
    return out


def entropy(v: Vector) -> Vector:
    logits = matrix(v["inputs"]["logits"])
    return {"entropy": logprobs_from_logits(logits, torch.zeros(len(logits), dtype=torch.long), entropy=True)[1]}


def rollout_is(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    ctx = make_context(make_batch(i["mask"], old_logp=i["old_logp"], behaviour_logp=i["rollout_logp"]), i["old_logp"])
    weight = RolloutIS(**p).weight(ctx)
    log_ratio = matrix(i["old_logp"]) - matrix(i["rollout_logp"])
    return {
        "weight": first_token(weight) if p["level"] == "sequence" else weight,
        "geo_ratio": first_token(rollout_weight(log_ratio, ctx.mask, level="geometric", cap=100.0)),
    }


def entropy_quantile(v: Vector) -> Vector:
    values, mask = matrix(v["inputs"]["entropy"]), torch.tensor(v["inputs"]["mask"]).bool()
    ctx = make_context(make_batch(mask), torch.zeros_like(values), entropy=values)
    component = EntropyQuantile(v["params"]["rho"])
    component.observe(ctx)
    return {"threshold": quantile(values, mask, 1 - v["params"]["rho"]), "keep": component.weight(ctx)}


def opsm(v: Vector) -> Vector:
    i = v["inputs"]
    batch = make_batch(i["mask"], advantages=i["advantages"], behaviour_logp=i["behaviour_logp"])
    ctx = make_context(batch, i["logp"])
    weight = OffPolicySequenceMask(v["params"]["delta"]).weight(ctx)
    return {
        "seq_kl": masked_mean(batch.behaviour_logp - ctx.logp, ctx.mask, dim=1),
        "keep": torch.where(ctx.mask, weight, 1.0).amin(1),
    }


def clip_cov(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    ctx = make_context(make_batch(i["mask"], advantages=i["advantages"], old_logp=i["old_logp"]), i["logp"])
    cov = covariance(ctx.logp, ctx.advantages, ctx.mask)
    bounds = (p["cov_low"], p["cov_high"]), (p["eps_low"], p["eps_high"])
    return {"cov": cov, "candidates": clip_cov_candidates(cov, ctx.ratio, ctx.advantages, ctx.mask, *bounds)}


def kl_cov(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    ctx = make_context(make_batch(i["mask"], advantages=i["advantages"], old_logp=i["old_logp"]), i["logp"])
    aux = KLCov(coef=p["coef"], share=p["k"])
    aux.observe(ctx)
    term = aux.term(ctx)
    total = Unclipped().loss(ctx, NoClip().bounds(ctx)) + ctx.clock.at(aux.coef) * term
    return {"selected": term != 0, "loss": TokenMean().reduce(total, ctx.mask, ctx.counts)}


def fipo(v: Vector) -> Vector:
    i, p = v["inputs"], v["params"]
    ctx = make_context(make_batch(i["mask"], old_logp=i["old_logp"]), i["logp"])
    weight = FutureKL(p["decay_rate"], clip=p["clip_range"], high_only=p["high_only"]).weight(ctx)
    return {
        "future_kl": future_kl(ctx.log_ratio, ctx.mask, p["decay_rate"]),
        "weight": torch.where(ctx.mask, weight, 0.0),
    }


BINDINGS = {
    "kl": kl,
    "kl.identity": kl_identity,
    "entropy": entropy,
    "loss_weight.rollout_is": rollout_is,
    "loss_weight.entropy_quantile": entropy_quantile,
    "loss_weight.off_policy_sequence_mask": opsm,
    "loss_weight.clip_cov": clip_cov,
    "aux_loss.kl_cov": kl_cov,
    "loss_weight.future_kl": fipo,
}
