"""Contracts of the trust region: ratio and clip policy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from lit_group_rl.clip_policies.base import ClipPolicy
from lit_group_rl.ratios.base import ImportanceRatio
from lit_group_rl.testing.cases import (
    CLOCK,
    CUT,
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
    restored,
    run_cases,
    same,
    widened,
    without_device,
)
from lit_group_rl.types import Bounds, RolloutBatch

RATIO: list[Case] = []
CLIP: list[Case] = []
SIDES = ("low", "high", "keep")


def check_ratio(component: ImportanceRatio, *, detached: bool = False, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the ratio keeps the contract of ``ratio``.

    ``detached``: a part of its value has no gradient on purpose, so that differences do not tell the gradient.
    """
    run_cases(component, RATIO, skip=[*skip, *(["finite differences"] if detached else [])])


def check_clip_policy(component: ClipPolicy, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the policy keeps the contract of ``clip_policy``."""
    run_cases(component, CLIP, skip=skip)


# ---- ratio


def log_ratio(component: ImportanceRatio, batch: RolloutBatch, moved: Tensor) -> Tensor:
    """What clip policy and surrogate get of a move of the token log-probs."""
    batch = copy.deepcopy(batch)
    component.prepare(batch, CLOCK)
    return component.perturbed(component.log_ratio(moved, batch.mask), batch)


def _moved(batch: RolloutBatch) -> Tensor:
    assert batch.old_logp is not None
    return torch.where(batch.mask, logp_of(batch) - batch.old_logp, 0.0)


@case(RATIO, "shape", "give one log-ratio per token; a ratio per completion is expanded to [B, T]")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    found = log_ratio(component, batch, _moved(batch))
    floating(found, tuple(batch.mask.shape), "the log-ratio")
    finite(found[batch.mask], "the log-ratio")


@case(RATIO, "no move", "give exactly 0 where logp equals old_logp: the first update is on-policy")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    found = component.log_ratio(torch.zeros_like(_moved(batch)), batch.mask)
    assert not bool(found[batch.mask].any()), "the policy has not moved, and a log-ratio is not 0"


@case(RATIO, "own row", "do not mix rows: a row's ratio is a function of its own tokens")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    moved = _moved(batch).requires_grad_()
    found = log_ratio(component, batch, moved)
    for row in (0, 4, 6):
        (gradient,) = torch.autograd.grad(found[row][batch.mask[row]].sum(), moved, retain_graph=True)
        others = torch.arange(len(batch)) != row
        assert not bool(gradient[others].any()), f"the ratio of row {row} moves with other rows"


@case(RATIO, "masked positions", "sum and count under the mask, as functional.masked does")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    moved = _moved(batch).requires_grad_()
    found = log_ratio(component, batch, moved)
    (gradient,) = torch.autograd.grad(found[batch.mask].sum(), moved)
    assert not bool(gradient[~batch.mask].any()), "a token off the mask gets a gradient"
    wide = widened(batch)
    more = log_ratio(component, wide, torch.nn.functional.pad(moved.detach(), (0, 2)))[:, :WIDTH]
    same(more[batch.mask], found[batch.mask], "with more padding")


@case(RATIO, "gradient", "keep the graph from the token log-ratio to what you return")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    moved = _moved(batch).requires_grad_()
    found = log_ratio(component, batch, moved)
    assert found.requires_grad, "the log-ratio has no gradient"
    (gradient,) = torch.autograd.grad(found[batch.mask].sum(), moved)
    finite(gradient, "the gradient")
    assert bool(gradient[batch.mask].all()), "a trained token gets no gradient"


@case(RATIO, "finite differences", "do not detach or round inside; if that is meant, check with detached=True")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    differences(lambda moved: log_ratio(component, batch, moved)[batch.mask], _moved(batch), batch.mask)


@case(RATIO, "device", "make tensors with zeros_like or new_tensor")
def _(component: ImportanceRatio) -> None:
    batch = for_losses()
    moved = _moved(batch)
    component.prepare(batch, CLOCK)
    with without_device():
        found = component.perturbed(component.log_ratio(moved, batch.mask), batch)
    assert found.device.type == "cpu", "the log-ratio is not on the device of its input"


def differences(function: Any, at: Tensor, mask: Tensor) -> None:
    """Refuse a gradient that differs from finite differences; only entries under the mask are moved."""
    inputs = at.detach()[mask].clone().requires_grad_()

    def of(values: Tensor) -> Any:
        return function(torch.zeros_like(at).masked_scatter(mask, values))

    try:
        torch.autograd.gradcheck(of, inputs, eps=1e-6, atol=1e-5, rtol=1e-4)
    except GradcheckError as error:
        text = " ".join(str(error).split())
        raise AssertionError(f"the gradient is not that of the value ({text[:120]})") from None


# ---- clip policy


def bounds(component: ClipPolicy, batch: RolloutBatch, logp: Tensor, *, prepared: bool = False) -> Bounds:
    """Bounds as the module asks for them: after a look at the whole rollout."""
    if not prepared:
        batch = copy.deepcopy(batch)
        component.prepare(batch, CLOCK)
    return component.bounds(context(batch, logp))


def _tensors(found: Bounds, mask: Tensor) -> dict[str, Tensor]:
    """The sides that are given, expanded to [B, T]."""
    given = {name: getattr(found, name) for name in SIDES if getattr(found, name) is not None}
    out = {}
    for name, value in given.items():
        assert isinstance(value, Tensor), f"Bounds.{name} is a {type(value).__name__}, not a tensor"
        try:
            out[name] = value.expand(mask.shape)
        except RuntimeError:
            shapes = f"{tuple(value.shape)}, which does not expand to {tuple(mask.shape)}"
            raise AssertionError(f"Bounds.{name} has shape {shapes}") from None
    return out


def _same_bounds(found: Bounds, wanted: Bounds, mask: Tensor, what: str, rows: Any = slice(None)) -> None:
    new, old = _tensors(found, mask[rows]), _tensors(wanted, mask)
    assert new.keys() == old.keys(), f"{what}: other sides are bounded"
    for name in new:
        same(new[name][mask[rows]], old[name][rows][mask[rows]], f"{what}: Bounds.{name}")


@case(
    CLIP, "shape", "return Bounds of tensors that broadcast to [B, T]: ctx.logp.new_tensor(0.8), or [:, None] per row"
)
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    found = bounds(component, batch, logp_of(batch))
    assert isinstance(found, Bounds), f"it gives a {type(found).__name__}, not Bounds"
    for name, value in _tensors(found, batch.mask).items():
        if name == "keep":
            assert value.dtype == torch.bool, f"Bounds.keep has dtype {value.dtype}"
        else:
            floating(value, tuple(batch.mask.shape), f"Bounds.{name}")
            finite(value[batch.mask], f"Bounds.{name}")


@case(CLIP, "around 1", "bound the ratio, not its logarithm or its distance from 1: low <= 1 <= high")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    assert batch.old_logp is not None
    still = torch.where(batch.mask, batch.old_logp, 0.0)
    found = bounds(component, batch, still)
    sides = _tensors(found, batch.mask)
    for name, side in sides.items():
        value = side[batch.mask]
        wrong = ~value if name == "keep" else value > 1 if name == "low" else value < 1
        assert not bool(wrong.any()), f"a ratio of 1 is not within Bounds.{name}"
    for name in ("cap", "dual"):
        limit = getattr(found, name)
        assert limit is None or limit >= 1, f"Bounds.{name} is {limit}, below 1"


@case(CLIP, "no gradient", "compute bounds from ctx.logp.detach()")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    found = bounds(component, batch, logp_of(batch).requires_grad_())
    for name, value in _tensors(found, batch.mask).items():
        assert not value.requires_grad, f"Bounds.{name} carries a gradient"


@case(CLIP, "before the ratio", "let pre keep shape, gradient and 0: it gets and gives token log-ratios")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    assert batch.advantages is not None
    moved = _moved(batch).requires_grad_()
    found = component.pre(moved, batch.advantages, batch.mask)
    floating(found, tuple(batch.mask.shape), "what pre gives")
    (gradient,) = torch.autograd.grad(found[batch.mask].sum(), moved)
    finite(gradient, "the gradient through pre")
    zero = component.pre(torch.zeros_like(moved), batch.advantages, batch.mask)
    assert not bool(zero.any()), "the policy has not moved, and pre gives a log-ratio other than 0"


@case(CLIP, "order of rows", "tell rows by ctx.batch, never by position")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    index = order(batch)
    wanted = bounds(copy.deepcopy(component), batch, logp_of(batch))
    found = bounds(component, batch.rows(index), logp_of(batch)[index])
    _same_bounds(found, wanted, batch.mask, "the same rows in another order", index)


@case(CLIP, "micro-batches", "take statistics of the rollout in prepare, once, and leave them in batch.features")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    component.prepare(batch, CLOCK)
    wanted = bounds(component, batch, logp_of(batch), prepared=True)
    for rows in CUT:
        part = batch.rows(torch.tensor(rows))
        found = bounds(component, part, logp_of(batch)[rows][:, : part.mask.shape[1]], prepared=True)
        kept, whole = part.mask, batch.mask[rows][:, : part.mask.shape[1]]
        assert bool((kept == whole).all())
        for name, value in _tensors(found, kept).items():
            old = _tensors(wanted, batch.mask)[name][rows][:, : kept.shape[1]]
            same(value[kept], old[kept], f"in a part of the rows Bounds.{name}")


@case(CLIP, "masked positions", "read per-token fields under ctx.mask only")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    wanted = bounds(copy.deepcopy(component), batch, logp_of(batch))
    _same_bounds(
        bounds(component, garbled(batch), logp_of(batch)), wanted, batch.mask, "with other numbers off the mask"
    )


@case(CLIP, "memory", "give what changes from step to step in state_dict, and take it in load_state_dict")
def _(component: ClipPolicy) -> None:
    original = copy.deepcopy(component)
    earlier = for_losses()
    assert earlier.scores is not None
    earlier.scores = 3 * earlier.scores + 1
    component.prepare(earlier, CLOCK)
    again = restored(component, original)
    batch = for_losses()
    wanted = bounds(component, batch, logp_of(batch))
    _same_bounds(bounds(again, batch, logp_of(batch)), wanted, batch.mask, "after resuming")


@case(CLIP, "device", "make tensors with ctx.logp.new_tensor or zeros_like")
def _(component: ClipPolicy) -> None:
    batch = for_losses()
    logp = logp_of(batch)
    component.prepare(batch, CLOCK)
    ctx = context(batch, logp)
    with without_device():
        found = component.bounds(ctx)
    for name, value in _tensors(found, batch.mask).items():
        assert value.device.type == "cpu", f"Bounds.{name} is not on the device of ctx.logp"
