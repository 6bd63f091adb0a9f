"""Contracts of what works on a rollout: advantage, filter, shapers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.advantages.base import AdvantageEstimator
from lit_group_rl.filters.base import GroupFilter
from lit_group_rl.rewards.base import RewardShaper
from lit_group_rl.testing.cases import (
    CLOCK,
    GROUPS,
    WIDTH,
    Case,
    abstained,
    case,
    example,
    finite,
    floating,
    garbled,
    order,
    restored,
    run_cases,
    same,
    widened,
    without_device,
)
from lit_group_rl.types import RolloutBatch

ADVANTAGE: list[Case] = []
FILTER: list[Case] = []
SHAPER: list[Case] = []
STATISTICS = "take statistics over batch.counted and by batch.group_ids, as functional.groups does"


def check_advantage(component: AdvantageEstimator, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the estimator keeps the contract of ``advantage``; rewards are 'exact', 'quality'."""
    run_cases(component, ADVANTAGE, skip=skip)


def check_filter(component: GroupFilter, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the filter keeps the contract of ``filter``."""
    run_cases(component, FILTER, skip=skip)


def check_shaper(component: RewardShaper, *, skip: Sequence[str] = ()) -> None:
    """Raises ContractError unless the shaper keeps the contract of ``shapers``."""
    run_cases(component, SHAPER, skip=skip)


# ---- advantage


def advantages(component: AdvantageEstimator, batch: RolloutBatch) -> Tensor:
    """What the module trains on: the estimate, after the component's look at the whole rollout."""
    batch = copy.deepcopy(batch)
    result = component.estimate(batch)
    batch.advantages, batch.returns = result.values, result.returns
    component.prepare(batch, CLOCK)
    assert batch.advantages is not None
    return batch.advantages


@case(ADVANTAGE, "shape", "return Advantages(per_token(row_values, batch)), which has the shape of batch.mask")
def _(component: AdvantageEstimator) -> None:
    batch = example()
    floating(advantages(component, batch), tuple(batch.mask.shape), "the advantage")


@case(ADVANTAGE, "device", "make tensors with device=batch.mask.device, or with zeros_like and new_tensor")
def _(component: AdvantageEstimator) -> None:
    with without_device():
        found = component.estimate(example_here()).values
    assert found.device.type == "cpu", "the advantage is not on the device of the batch"


@case(ADVANTAGE, "no gradient", "detach what comes from a model")
def _(component: AdvantageEstimator) -> None:
    batch = example()
    assert batch.values is not None
    batch.values.requires_grad_()
    assert not advantages(component, batch).requires_grad, "the advantage carries a gradient"


@case(ADVANTAGE, "equal scores", "guard a division by a spread that is 0; equal scores are centred to exactly 0")
def _(component: AdvantageEstimator) -> None:
    for score in (0.0, 1.0, 0.1):
        batch = example([score] * len(GROUPS))
        batch.rewards = {name: torch.full_like(column, score) for name, column in batch.rewards.items()}
        found = advantages(component, batch)
        finite(found, f"with every member at {score} the advantage")
        if component.needs_group:
            worst = float(found.abs().max())
            assert worst == 0, f"with every member at {score} an advantage is {worst:.3g}, not 0"


@case(ADVANTAGE, "off the mask", "use per_token, or torch.where(batch.mask & batch.counted[:, None], ..., 0.0)")
def _(component: AdvantageEstimator) -> None:
    batch = abstained(example(), [4])
    found = advantages(component, batch)
    outside = found[~(batch.mask & batch.counted[:, None])]
    assert not bool((outside != 0).any()), "tokens off the mask or rows that do not count have an advantage"


@case(ADVANTAGE, "abstention", STATISTICS + "; an abstained row scores NaN")
def _(component: AdvantageEstimator) -> None:
    batch = abstained(example(), [4, 5])
    rest = [i for i in range(len(batch)) if i not in (4, 5)]
    found = advantages(copy.deepcopy(component), batch)
    finite(found, "beside rows that abstain the advantage")
    alone = advantages(component, batch.rows(torch.tensor(rest)))
    same(found[rest][:, : alone.shape[1]], alone, "rows beside those that abstain")


@case(ADVANTAGE, "order of rows", STATISTICS + ", never by position")
def _(component: AdvantageEstimator) -> None:
    batch = example()
    index = order(batch)
    found = advantages(copy.deepcopy(component), batch.rows(index))
    same(found, advantages(component, batch)[index], "the same rows in another order")


@case(ADVANTAGE, "names of groups", "treat group_ids as names: compare them, do not count or index with them")
def _(component: AdvantageEstimator) -> None:
    batch, renamed = example(), example()
    renamed.group_ids = torch.tensor([40, 7, 1000])[renamed.group_ids]
    same(advantages(copy.deepcopy(component), renamed), advantages(component, batch), "the same groups under other ids")


@case(ADVANTAGE, "masked positions", "read per-token fields under batch.mask only, and lengths as batch.mask.sum(1)")
def _(component: AdvantageEstimator) -> None:
    batch = example()
    wanted = advantages(copy.deepcopy(component), batch)
    same(advantages(copy.deepcopy(component), garbled(batch)), wanted, "with other numbers off the mask")
    same(advantages(component, widened(batch))[:, :WIDTH], wanted, "with more padding")


@case(ADVANTAGE, "input left alone", "copy before you change, e.g. scores.clone()")
def _(component: AdvantageEstimator) -> None:
    batch, before = example(), example()
    component.estimate(batch)
    for name in ("scores", "mask", "group_ids", "rewards", "values"):
        old, new = getattr(before, name), getattr(batch, name)
        pairs = [(old[k], new[k]) for k in old] if isinstance(old, dict) else [(old, new)]
        for a, b in pairs:
            same(b.double(), a.double(), f"batch.{name}")


@case(ADVANTAGE, "memory", "give what changes from step to step in state_dict, and take it in load_state_dict")
def _(component: AdvantageEstimator) -> None:
    original = copy.deepcopy(component)
    advantages(component, example(seed=1))
    again = restored(component, original)
    same(advantages(again, example()), advantages(component, example()), "after resuming")


def example_here() -> RolloutBatch:
    """The example on the CPU, whatever the default device is."""
    with torch.device("cpu"):
        return example()


# ---- filter


@case(FILTER, "shape", "return one bool per row: a tensor [B] of dtype bool")
def _(component: GroupFilter) -> None:
    keep: Any = component.keep(example())
    assert isinstance(keep, Tensor), f"keep is a {type(keep).__name__}, not a tensor"
    assert keep.dtype == torch.bool, f"keep has dtype {keep.dtype}"
    assert keep.shape == (len(example()),), f"keep has shape {tuple(keep.shape)}"


@case(FILTER, "whole groups", "decide per group and give every member the same, as functional.groups does")
def _(component: GroupFilter) -> None:
    batch = example()
    keep = component.keep(batch)
    for group in batch.group_ids.unique():
        members = keep[batch.group_ids == group]
        assert bool(members.all()) or not bool(members.any()), f"group {int(group)} is cut: {members.tolist()}"


@case(FILTER, "device", "make tensors with device=batch.mask.device")
def _(component: GroupFilter) -> None:
    with without_device():
        found = component.keep(example_here())
    assert found.device.type == "cpu", "keep is not on the device of the batch"


@case(FILTER, "order of rows", STATISTICS)
def _(component: GroupFilter) -> None:
    batch = example()
    index = order(batch)
    kept = component.keep(batch)[index]
    same(component.keep(batch.rows(index)).double(), kept.double(), "the same rows in another order")


@case(FILTER, "abstention", STATISTICS + "; an abstained row scores NaN")
def _(component: GroupFilter) -> None:
    batch = abstained(example(), [7])  # of a tied group one scored member is left
    rest = torch.tensor([i for i in range(len(batch)) if i != 7])
    same(component.keep(batch)[rest].double(), component.keep(batch.rows(rest)).double(), "beside rows that abstain")
    component.keep(abstained(example(), list(range(len(GROUPS)))))


@case(FILTER, "input left alone", "copy before you change")
def _(component: GroupFilter) -> None:
    batch, before = example(), example()
    component.keep(batch)
    assert batch.scores is not None
    assert before.scores is not None
    same(batch.scores, before.scores, "batch.scores")
    same(batch.mask.double(), before.mask.double(), "batch.mask")


# ---- shapers


@case(SHAPER, "shape", "return [B], added to the scores, or [B, T], added to the token rewards")
def _(component: RewardShaper) -> None:
    batch = example()
    change = component.shape(batch, CLOCK)
    shape = (len(batch),) if isinstance(change, Tensor) and change.dim() == 1 else tuple(batch.mask.shape)
    floating(change, shape, "the change")
    finite(change, "the change")


@case(SHAPER, "order of rows", STATISTICS)
def _(component: RewardShaper) -> None:
    batch = example()
    index = order(batch)
    wanted = component.shape(batch, CLOCK)[index]
    same(component.shape(batch.rows(index), CLOCK), wanted, "the same rows in another order")


@case(SHAPER, "masked positions", "read per-token fields under batch.mask, and leave 0 off it")
def _(component: RewardShaper) -> None:
    batch = example()
    wanted = component.shape(batch, CLOCK)
    same(component.shape(garbled(batch), CLOCK), wanted, "with other numbers off the mask")
    if wanted.dim() == 2:
        assert not bool((wanted[~batch.mask] != 0).any()), "tokens off the mask have a reward"
    wide = component.shape(widened(batch), CLOCK)
    same(wide if wide.dim() == 1 else wide[:, :WIDTH], wanted, "with more padding")


@case(SHAPER, "input left alone", "return what is added; do not add it")
def _(component: RewardShaper) -> None:
    batch, before = example(), example()
    component.shape(batch, CLOCK)
    assert batch.scores is not None
    assert before.scores is not None
    same(batch.scores, before.scores, "batch.scores")
