"""Bindings of the reference vectors that act on a micro-batch: ratios, trust regions, surrogates, aggregators."""

from __future__ import annotations

from typing import Any

import torch

from lit_group_rl.aggregators import FixedLength, LossAggregator, SequenceMean, SequenceSum, TokenMean, TokenSum
from lit_group_rl.clip_policies import Divergence, FixedClip, LogSpaceClip, NoClip, RatioRange, SignedRange
from lit_group_rl.clip_policies.divergence import binary_divergence
from lit_group_rl.functional.masked import masked_mean
from lit_group_rl.ratios import SequenceRatio, SequenceSumRatio, SequenceTokenRatio, TokenRatio
from lit_group_rl.surrogates import (
    DRO,
    Clipped,
    GammaWeight,
    GroupClassification,
    ImportanceWeighted,
    Quadratic,
    Reinforce,
    SoftGate,
    Unclipped,
)
from lit_group_rl.surrogates.gamma_weight import gamma_weight
from lit_group_rl.surrogates.group_classification import group_classification_loss
from lit_group_rl.surrogates.offpolicy_shape import shaped
from lit_group_rl.surrogates.soft_gate import soft_gate
from lit_group_rl.types import Counts
from tests.builders import counts_of, make_batch, make_context, matrix, with_grad

Vector = dict[str, Any]


def aggregator(name: str, params: Vector) -> LossAggregator:
    return {
        "token-mean": TokenMean,
        "seq-mean-token-mean": SequenceMean,
        "seq-mean": SequenceMean,
        "seq-mean-token-sum": SequenceSum,
        "seq-mean-token-sum-norm": lambda: FixedLength(params["horizon"]),
        "token-sum": TokenSum,
    }[name]()


def run(v: Vector, surrogate: Any, clip: Any = None, ratio: Any = None, **outputs: Any) -> Vector:
    """Loss and gradient of a recipe's policy loss; ``outputs`` are further quantities as functions of (ctx, values)."""
    i, clip = v["inputs"], clip or NoClip()
    advantages = i.get("advantages", i.get("token_advantages", [0.0] * len(i["mask"])))
    batch = make_batch(
        i["mask"],
        advantages=advantages,
        group_ids=i.get("group_ids"),
        solved=i.get("binary_rewards"),
        scores=i.get("binary_rewards"),
        **({"old_logp": i["old_logp"]} if "old_logp" in i else {}),
    )
    logp = with_grad(i["logp"])
    ctx = make_context(batch, logp, ratio=ratio, clip_policy=clip)
    values = surrogate.loss(ctx, clip.bounds(ctx))
    loss = aggregator(v["params"].get("aggregate", "seq-mean"), v["params"]).reduce(values, ctx.mask, ctx.counts)
    (grad,) = torch.autograd.grad(loss, logp, retain_graph=True)
    values = torch.where(ctx.mask, values, 0.0)
    return {"loss": loss, "grad_logp": grad, **{name: f(ctx, values) for name, f in outputs.items()}}


def fixed(p: Vector) -> FixedClip:
    return FixedClip(p["eps_low"], p["eps_high"], cap=p.get("delta"), dual=p.get("dual_clip"))


def first_token(values: torch.Tensor) -> torch.Tensor:
    return values[:, 0]


def clipped(v: Vector) -> Vector:
    return run(v, Clipped(), fixed(v["params"]), per_token_loss=lambda ctx, values: values)


def gspo(v: Vector) -> Vector:
    def stopped(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad(values.sum(), ctx.logp, retain_graph=True)
        return first_token(grad) == 0

    return run(
        v,
        Clipped(),
        fixed(v["params"]),
        SequenceRatio(),
        per_sequence_loss=lambda ctx, values: first_token(values),
        clipped=stopped,
    )


def gspo_token(v: Vector) -> Vector:
    return run(v, Clipped(), fixed(v["params"]), SequenceTokenRatio())


def gmpo(v: Vector) -> Vector:
    clip = LogSpaceClip(v["params"]["eps_low"], v["params"]["eps_high"])
    return run(v, Unclipped(), clip, SequenceRatio(), geo_ratio=lambda ctx, values: first_token(ctx.ratio))


def importance_weighted(v: Vector) -> Vector:
    p = v["params"]
    if p.get("convention") == "delta_from_one":
        clip: Any = FixedClip(p["eps_low"], p["eps_high"])
    elif p.get("convention") == "absolute_cap":
        clip = RatioRange(p["eps_low"], p["eps_high"])
    else:
        weight = p["positive_weight"]
        clip = SignedRange(weight, weight, negative_min=0.0, negative_max=p["negative_cap"])
    return run(v, ImportanceWeighted(), clip)


def divergence(v: Vector) -> Vector:
    p = v["params"]
    clip = Divergence(p["divergence"], threshold=p["threshold"], cap=p["ratio_cap"])

    def measured(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        value = binary_divergence(ctx.logp.detach(), ctx.batch.old_logp, p["divergence"])
        return torch.where(ctx.mask, value, 0.0)

    return run(
        v, ImportanceWeighted(), clip, divergence=measured, keep=lambda ctx, values: ctx.mask & clip.bounds(ctx).keep
    )


def soft(v: Vector) -> Vector:
    tau = torch.where(matrix(v["inputs"]["advantages"]) > 0, v["params"]["tau_pos"], v["params"]["tau_neg"])[:, None]
    return run(
        v,
        SoftGate(v["params"]["tau_pos"], v["params"]["tau_neg"]),
        gate=lambda ctx, values: torch.where(ctx.mask, soft_gate(ctx.ratio, tau), 0.0),
    )


def vespo(v: Vector) -> Vector:
    p = v["params"]
    positive = matrix(v["inputs"]["advantages"]) >= 0
    k, rate = torch.where(positive, p["k_pos"], p["k_neg"]), torch.where(positive, p["lambda_pos"], p["lambda_neg"])
    return run(
        v,
        GammaWeight(p["k_pos"], p["lambda_pos"], p["k_neg"], p["lambda_neg"]),
        ratio=SequenceSumRatio(),
        phi=lambda ctx, values: gamma_weight(first_token(ctx.log_ratio), k, rate),
    )


def quadratic(v: Vector) -> Vector:
    def gradient_weight(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        """1 - sign(A (r - 1)) |p - q| / delta, read off the gradient -A r * weight of the loss."""
        (grad,) = torch.autograd.grad(values.sum(), ctx.logp, retain_graph=True)
        return torch.where(ctx.mask, -grad / (ctx.advantages * ctx.ratio.detach()).where(ctx.mask, 1.0), 0.0)

    return run(v, Quadratic(v["params"]["delta"]), weight=gradient_weight)


def real(v: Vector) -> Vector:
    def groups(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        scores = masked_mean(ctx.log_ratio, ctx.mask, dim=1)
        b = ctx.batch
        rows = group_classification_loss(scores, b.solved, b.group_ids, b.mask.any(1), v["params"]["tau"])
        return torch.stack([rows[b.group_ids == g][0] for g in b.group_ids.unique()])

    return run(v, GroupClassification(v["params"]["tau"]), ratio=SequenceRatio(), per_group_loss=groups)


def luffy(v: Vector) -> Vector:
    logp = with_grad(v["inputs"]["prob"]).log().detach().requires_grad_()
    value = shaped(logp.exp(), v["params"]["gamma"])
    (grad,) = torch.autograd.grad(value.sum(), logp)
    return {"f": value, "grad_weight_logp": grad}


def ratio(component: Any, *, per_row: bool) -> Any:
    def bound(v: Vector) -> Vector:
        i = v["inputs"]
        ctx = make_context(make_batch(i["mask"], old_logp=i["old_logp"]), i["logp"], ratio=component)
        return {"ratio": first_token(ctx.ratio) if per_row else torch.where(ctx.mask, ctx.ratio, 0.0)}

    return bound


def aggregate(v: Vector) -> Vector:
    loss, mask = matrix(v["inputs"]["loss"]), torch.tensor(v["inputs"]["mask"]).bool()
    total = counts_of(mask, torch.zeros(len(mask)))
    return {name: aggregator(name, v["params"]).reduce(loss, mask, total) for name in v["expected"]}


def micro_batches(v: Vector) -> Vector:
    loss, mask = matrix(v["inputs"]["loss"]), torch.tensor(v["inputs"]["mask"]).bool()
    total = counts_of(mask, torch.zeros(len(mask)))
    parts = list(zip(loss.split(v["params"]["split"]), mask.split(v["params"]["split"]), strict=True))
    naive = [TokenMean().reduce(x, m, Counts(float(m.sum()), 0.0, 0.0)) for x, m in parts]
    return {
        "token_mean_sum_of_micro": sum(TokenMean().reduce(x, m, total) for x, m in parts),
        "token_mean_naive_mean_of_micro": sum(naive) / len(naive),
        "seq_mean_token_mean_sum_of_micro": sum(SequenceMean().reduce(x, m, total) for x, m in parts),
    }


BINDINGS = {
    "ratio.token": ratio(TokenRatio(), per_row=False),
    "ratio.sequence": ratio(SequenceRatio(), per_row=True),
    "ratio.sequence_sum": ratio(SequenceSumRatio(), per_row=True),
    "aggregate": aggregate,
    "aggregate.global_counts": micro_batches,
    "surrogate.pg_clip": clipped,
    "surrogate.pg_clip+ratio.sequence": gspo,
    "surrogate.pg_clip+ratio.sequence_token": gspo_token,
    "surrogate.pg_linear+ratio.sequence+clip.token_log_pre": gmpo,
    "surrogate.is_reinforce": importance_weighted,
    "surrogate.is_reinforce+trust_region.dppo": divergence,
    "surrogate.soft_gate": soft,
    "surrogate.gamma_weight": vespo,
    "surrogate.quadratic_tv": quadratic,
    "surrogate.dro": lambda v: run(v, DRO(v["params"]["beta"])),
    "surrogate.reinforce": lambda v: run(v, Reinforce()),
    "surrogate.group_classification": real,
    "surrogate.offpolicy_shape": luffy,
}
