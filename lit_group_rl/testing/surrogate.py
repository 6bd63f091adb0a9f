"""The contract of the surrogate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_group_rl.batching import counts
from lit_group_rl.surrogates.base import Surrogate
from lit_group_rl.testing.cases import (
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
    without_device,
)
from lit_group_rl.testing.trust_region import differences
from lit_group_rl.types import POLICY, Bounds, RolloutBatch

SURROGATE: list[Case] = []


def check_surrogate(
    component: Surrogate, *, detached: bool = False, policy_gradient: bool = True, skip: Sequence[str] = ()
) -> None:
    """Raises ContractError unless the surrogate keeps the contract of ``surrogate``.

    ``detached``: a factor has no gradient on purpose, so that differences do not tell the gradient.
    ``policy_gradient`` False: on the first update its gradient is meant to differ from -A.
    """
    left_out = (["finite differences"] if detached else []) + ([] if policy_gradient else ["first update"])
    run_cases(component, SURROGATE, skip=[*skip, *left_out])


WIDE = Bounds()


def _clip(logp: Tensor) -> Bounds:
    return Bounds(logp.new_tensor(0.8), logp.new_tensor(1.2))


def loss(component: Surrogate, batch: RolloutBatch, logp: Tensor, limits: Bounds = WIDE) -> Tensor:
    """The loss per token."""
    return component.loss(context(batch, logp), limits)


def _gradient(component: Surrogate, batch: RolloutBatch, logp: Tensor, limits: Bounds = WIDE) -> Tensor:
    leaf = logp.detach().clone().requires_grad_()
    total = loss(component, batch, leaf, limits)[batch.mask].sum()
    (gradient,) = torch.autograd.grad(total, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient


@case(SURROGATE, "shape", "give one loss per token, [B, T], of the dtype of ctx.logp")
def _(component: Surrogate) -> None:
    batch = for_losses()
    found = loss(component, batch, logp_of(batch).requires_grad_())
    floating(found, tuple(batch.mask.shape), "the loss")
    assert found.dtype == torch.float64, f"the loss has dtype {found.dtype} where logp has float64"


@case(SURROGATE, "gradient", "keep the graph from ctx.logp or ctx.log_ratio to the loss")
def _(component: Surrogate) -> None:
    batch = for_losses()
    gradient = _gradient(component, batch, logp_of(batch))
    finite(gradient, "the gradient")
    assert bool(gradient.any()), "no token gets a gradient"


@case(SURROGATE, "finite differences", "do not detach or round inside; if that is meant, check with detached=True")
def _(component: Surrogate) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    differences(lambda x: loss(component, batch, x, _clip(x))[batch.mask], logp, batch.mask)


@case(SURROGATE, "first update", "minimise -A log pi: the sign of A turns; else check with policy_gradient=False")
def _(component: Surrogate) -> None:
    batch = for_losses()
    assert batch.old_logp is not None
    assert batch.advantages is not None
    batch.row_role[:] = POLICY  # only a policy's own rows are on-policy
    still = torch.where(batch.mask, batch.old_logp, 0.0)
    same(_gradient(component, batch, still, _clip(still)), -batch.advantages, "before the policy moves the gradient -A")


@case(SURROGATE, "extremes", "use ctx.ratio, whose exponent is clamped, and not ctx.log_ratio.exp()")
def _(component: Surrogate) -> None:
    batch = for_losses()
    assert batch.old_logp is not None
    far = torch.where(batch.mask, torch.full_like(batch.old_logp, -800.0), 0.0)
    near = torch.zeros_like(far)
    for what, logp, old in (("impossible", far, near - 1), ("certain", near, far)):
        batch.old_logp = batch.behaviour_logp = old
        finite(loss(component, batch, logp)[batch.mask], f"of tokens that became {what} the loss")
        finite(_gradient(component, batch, logp), f"of tokens that became {what} the gradient")


@case(SURROGATE, "no advantage", "let the advantage be a factor, or do not declare zero_without_advantage")
def _(component: Surrogate) -> None:
    batch = for_losses()
    assert batch.advantages is not None
    gradient = _gradient(component, batch, logp_of(batch), _clip(logp_of(batch)))
    if component.zero_without_advantage:
        assert not bool(gradient[batch.advantages == 0].any()), "a token with advantage 0 gets a gradient"


@case(SURROGATE, "bounds", "set uses_bounds to what is true: whether Bounds.low and Bounds.high change the loss")
def _(component: Surrogate) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    open_, closed = loss(component, batch, logp), loss(component, batch, logp, _clip(logp))
    differ = not torch.equal(open_[batch.mask], closed[batch.mask])
    assert differ == component.uses_bounds, f"uses_bounds is {component.uses_bounds}, and bounds change it: {differ}"


@case(SURROGATE, "masked positions", "sum and count under ctx.mask, as functional.masked does")
def _(component: Surrogate) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    assert not bool(_gradient(component, batch, logp)[~batch.mask].any()), "a token off the mask gets a gradient"
    wanted = loss(component, batch, logp)[batch.mask]
    same(loss(component, garbled(batch), logp)[batch.mask], wanted, "with other numbers off the mask")
    more = loss(component, widened(batch), torch.nn.functional.pad(logp, (0, 2)))[:, :WIDTH]
    same(more[batch.mask], wanted, "with more padding")


@case(SURROGATE, "order of rows", "tell rows by ctx.batch and groups by group_ids, never by position")
def _(component: Surrogate) -> None:
    batch = for_losses()
    index, logp = order(batch), logp_of(batch)
    wanted = loss(component, batch, logp)[index]
    found = loss(component, batch.rows(index), logp[index])
    same(found[batch.mask[index]], wanted[batch.mask[index]], "the same rows in another order")


@case(
    SURROGATE, "micro-batches", "use ctx.counts for normalisers; if members of a group are compared, set whole_groups"
)
def _(component: Surrogate) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    whole = component.loss(context(batch, logp), WIDE)
    total = counts([batch.mask], batch.group_ids)[0]
    for rows in PARTS if component.whole_groups else CUT:
        part = batch.rows(torch.tensor(rows))
        width = part.mask.shape[1]
        found = component.loss(context(part, logp[rows][:, :width], total=total), WIDE)
        same(found[part.mask], whole[rows][:, :width][part.mask], "in a part of the rows")


@case(SURROGATE, "device", "make tensors with ctx.logp.new_tensor or zeros_like")
def _(component: Surrogate) -> None:
    batch = for_losses()
    ctx, limits = context(batch, logp_of(batch)), _clip(logp_of(batch))
    with without_device():
        found = component.loss(ctx, limits)
    assert found.device.type == "cpu", "the loss is not on the device of ctx.logp"
