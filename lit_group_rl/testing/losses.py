"""Contracts of what makes the loss: loss weights, auxiliary losses, aggregator."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.aggregators.base import LossAggregator
from lit_group_rl.aux_losses.base import AuxLoss
from lit_group_rl.batching import counts
from lit_group_rl.loss_weights.base import LossWeight
from lit_group_rl.testing.cases import (
    CLOCK,
    CUT,
    PARTS,
    WIDTH,
    Case,
    case,
    context,
    finite,
    floating,
    for_losses,
    garbled,
    logp_of,
    order,
    run_cases,
    same,
    widened,
)
from lit_group_rl.testing.trust_region import differences
from lit_group_rl.types import RolloutBatch

WEIGHT: list[Case] = []
AUX: list[Case] = []
AGGREGATOR: list[Case] = []
DETACHED = "do not detach or round inside; if that is meant, check with detached=True"


def check_loss_weight(component: LossWeight, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the factor keeps the contract of ``loss_weights``; a reward is named 'quality'."""
    run_cases(component, WEIGHT, skip=skip)


def check_aux_loss(component: AuxLoss, *, detached: bool = False, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the term keeps the contract of ``aux_losses``; a reward is named 'quality'.

    ``detached``: a factor has no gradient on purpose, so that differences do not tell the gradient.
    """
    run_cases(component, AUX, skip=[*skip, *(["finite differences"] if detached else [])])


def check_aggregator(component: LossAggregator, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the aggregator keeps the contract of ``aggregator``."""
    run_cases(component, AGGREGATOR, skip=skip)


# ---- loss weights


def weights(component: LossWeight, batch: RolloutBatch, logp: Tensor) -> tuple[Tensor, RolloutBatch]:
    """The factors of all rows, and the batch as the component's look at the rollout has left it."""
    batch = copy.deepcopy(batch)
    component.prepare(batch, CLOCK)
    ctx = context(batch, logp)
    component.observe(ctx)
    found: Any = component.weight(ctx)
    assert isinstance(found, Tensor), f"the weight is a {type(found).__name__}, not a tensor"
    try:
        return found.expand(batch.mask.shape), batch
    except RuntimeError:
        shapes = f"{tuple(found.shape)}, which does not expand to {tuple(batch.mask.shape)}"
        raise AssertionError(f"the weight has shape {shapes}") from None


@case(WEIGHT, "shape", "return floats that broadcast to [B, T]; a weight per row needs [:, None]")
def _(component: LossWeight) -> None:
    found, batch = weights(component, for_losses(), logp_of(for_losses()))
    floating(found, tuple(batch.mask.shape), "the weight")
    finite(found[batch.mask], "the weight")
    least = float(found[batch.mask].min())
    assert least >= 0, f"a weight is {least:.3g}: it would turn the sign of the loss"


@case(WEIGHT, "no gradient", "compute the weight from ctx.logp.detach()")
def _(component: LossWeight) -> None:
    batch = for_losses()
    found, _ = weights(component, batch, logp_of(batch).requires_grad_())
    assert not found.requires_grad, "the weight carries a gradient"


@case(WEIGHT, "order of rows", "key random numbers by row_ids and tell groups by group_ids")
def _(component: LossWeight) -> None:
    batch = for_losses()
    index, logp = order(batch), logp_of(batch)
    wanted, seen = weights(copy.deepcopy(component), batch, logp)
    found, _ = weights(component, batch.rows(index), logp[index])
    mask = seen.mask[index]
    same(found[mask], wanted[index][mask], "the same rows in another order")


@case(WEIGHT, "micro-batches", "take statistics in prepare, or in observe with whole_minibatch, not in weight")
def _(component: LossWeight) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    wanted, batch = weights(component, batch, logp)
    for rows in CUT:
        part = batch.rows(torch.tensor(rows))
        width = part.mask.shape[1]
        found = component.weight(context(part, logp[rows][:, :width])).expand(part.mask.shape)
        same(found[part.mask], wanted[rows][:, :width][part.mask], "in a part of the rows")


@case(WEIGHT, "masked positions", "read per-token fields under ctx.mask only")
def _(component: LossWeight) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    wanted, seen = weights(copy.deepcopy(component), batch, logp)
    found, _ = weights(copy.deepcopy(component), garbled(batch), logp)
    same(found[seen.mask], wanted[seen.mask], "with other numbers off the mask")
    more, _ = weights(component, widened(batch), torch.nn.functional.pad(logp, (0, 2)))
    same(more[:, :WIDTH][seen.mask], wanted[seen.mask], "with more padding")


# ---- auxiliary losses


def terms(component: AuxLoss, batch: RolloutBatch, logp: Tensor, entropy: Tensor) -> tuple[Tensor, RolloutBatch]:
    """The term per token over all rows, and the batch that its selection is asked of."""
    batch = copy.deepcopy(batch)
    component.prepare(batch, CLOCK)
    ctx = context(batch, logp, entropy)
    component.observe(ctx)
    return component.term(ctx), batch


def _leaves(batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    assert batch.entropy is not None
    return logp_of(batch).requires_grad_(), batch.entropy.clone().requires_grad_()


@case(AUX, "shape", "give one value per token in term, and a bool [B, T] in selection")
def _(component: AuxLoss) -> None:
    batch = for_losses()
    found, batch = terms(component, batch, *_leaves(batch))
    floating(found, tuple(batch.mask.shape), "the term")
    chosen: Any = component.selection(batch)
    assert isinstance(chosen, Tensor), f"the selection is a {type(chosen).__name__}, not a tensor"
    assert chosen.dtype == torch.bool, f"the selection has dtype {chosen.dtype}"
    assert chosen.shape == batch.mask.shape, f"the selection has shape {tuple(chosen.shape)}"
    assert not bool((chosen & ~batch.completion_mask).any()), "padding is selected"
    finite(found[chosen], "the term")
    how = component.aggregator()
    assert how is None or isinstance(how, LossAggregator), f"aggregator gives a {type(how).__name__}"


@case(AUX, "gradient", "keep the graph from ctx.logp or ctx.entropy to the term")
def _(component: AuxLoss) -> None:
    batch = for_losses()
    leaves = _leaves(batch)
    found, batch = terms(component, batch, *leaves)
    chosen = component.selection(batch)
    assert found.requires_grad, "the term has no gradient"
    given = torch.autograd.grad(found[chosen].sum(), leaves, allow_unused=True)
    gradients = [g for g in given if g is not None]
    for gradient in gradients:
        finite(gradient, "the gradient")
        assert not bool(gradient[~chosen].any()), "a token that is not selected gets a gradient"
    assert any(bool(g.any()) for g in gradients), "no token gets a gradient"


@case(AUX, "finite differences", DETACHED)
def _(component: AuxLoss) -> None:
    batch = for_losses()
    logp, entropy = _leaves(batch)
    _, seen = terms(copy.deepcopy(component), batch, logp, entropy)
    chosen = component.selection(seen)

    def term(x: Tensor) -> Tensor:
        # read twice, as a term need not read both
        return terms(copy.deepcopy(component), batch, x, entropy)[0][chosen] + 0 * x[chosen]

    differences(term, logp, batch.mask)


@case(AUX, "order of rows", "tell groups by group_ids, never by position")
def _(component: AuxLoss) -> None:
    batch = for_losses()
    index, (logp, entropy) = order(batch), _leaves(batch)
    wanted, seen = terms(copy.deepcopy(component), batch, logp, entropy)
    chosen = component.selection(seen)[index]
    found, _ = terms(component, batch.rows(index), logp[index], entropy[index])
    same(found[chosen], wanted[index][chosen], "the same rows in another order")


@case(AUX, "micro-batches", "take statistics in prepare, or in observe with whole_minibatch, not in term")
def _(component: AuxLoss) -> None:
    batch = for_losses()
    logp, entropy = _leaves(batch)
    wanted, batch = terms(component, batch, logp, entropy)
    for rows in PARTS if component.whole_groups else CUT:
        part = batch.rows(torch.tensor(rows))
        width = part.mask.shape[1]
        found = component.term(context(part, logp[rows][:, :width], entropy[rows][:, :width]))
        chosen = component.selection(part)
        same(found[chosen], wanted[rows][:, :width][chosen], "in a part of the rows")


@case(AUX, "masked positions", "read per-token fields under the selection only")
def _(component: AuxLoss) -> None:
    batch = for_losses()
    logp, entropy = _leaves(batch)
    wanted, seen = terms(copy.deepcopy(component), batch, logp, entropy)
    chosen = component.selection(seen)
    found, _ = terms(component, garbled(batch), logp, entropy)
    same(found[chosen], wanted[chosen], "with other numbers off the mask")


# ---- aggregator


def _values() -> tuple[Tensor, RolloutBatch]:
    batch = for_losses()
    return 2 + logp_of(batch, seed=9), batch


@case(AGGREGATOR, "shape", "return one number: a tensor without dimensions")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    total = counts([batch.mask], batch.group_ids)[0]
    found = component.reduce(values, batch.mask, total)
    floating(found, (), "the loss")
    finite(found, "the loss")
    positive = float(component.reduce(torch.ones_like(values), batch.mask, total))
    assert positive > 0, f"of a loss of 1 on every token it makes {positive:.3g}"


@case(AGGREGATOR, "empty mask", "divide by max(count, 1): with no trained token the loss is 0")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    empty = torch.zeros_like(batch.mask)
    found = component.reduce(values, empty, counts([empty], batch.group_ids)[0])
    assert float(found) == 0, f"with no trained token it gives {float(found)}"


@case(AGGREGATOR, "micro-batches", "divide by ctx.counts, which are those of the whole minibatch, not by mask.sum()")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    total = counts([batch.mask], batch.group_ids)[0]
    whole = component.reduce(values, batch.mask, total)
    parts = torch.stack([component.reduce(values[rows], batch.mask[rows], total) for rows in CUT]).sum()
    same(parts, whole, "summed over micro-batches")


@case(AGGREGATOR, "masked positions", "sum with functional.masked, which ignores even NaN off the mask")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    total = counts([batch.mask], batch.group_ids)[0]
    wanted = component.reduce(values, batch.mask, total)
    other = torch.where(batch.mask, values, torch.nan).requires_grad_()
    found = component.reduce(other, batch.mask, total)
    same(found, wanted, "with NaN off the mask")
    (gradient,) = torch.autograd.grad(found, other)
    assert not bool(gradient[~batch.mask].any()), "a token off the mask gets a gradient"
    wide = torch.nn.functional.pad
    same(component.reduce(wide(values, (0, 2)), wide(batch.mask, (0, 2)), total), wanted, "with more padding")


@case(AGGREGATOR, "finite differences", "keep the graph: no detach, no item()")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    total = counts([batch.mask], batch.group_ids)[0]
    differences(lambda x: component.reduce(x, batch.mask, total), values, batch.mask)


@case(AGGREGATOR, "linear", "weigh and add the tokens' losses; twice the loss is twice the number")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    total = counts([batch.mask], batch.group_ids)[0]
    same(
        component.reduce(2 * values, batch.mask, total),
        2 * component.reduce(values, batch.mask, total),
        "of twice the loss",
    )


@case(AGGREGATOR, "order of rows", "treat all rows alike")
def _(component: LossAggregator) -> None:
    values, batch = _values()
    index = order(batch)
    total = counts([batch.mask], batch.group_ids)[0]
    wanted = component.reduce(values, batch.mask, total)
    same(component.reduce(values[index], batch.mask[index], total), wanted, "the same rows in another order")
