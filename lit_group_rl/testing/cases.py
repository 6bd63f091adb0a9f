"""How a contract is run, and the rollout that every case starts from."""

from __future__ import annotations

import copy
import dataclasses
import json
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.batching import counts
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import BASELINE, EXPERT, POLICY, Counts, LossContext, RolloutBatch, Sample

CLOCK = Clock(3, 100)
GROUPS = [0, 1, 0, 2, 1, 0, 1, 2, 1]
"""Interleaved, of sizes 3, 4 and 2."""
SCORES = [1.0, 0.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.0]
"""The last group is tied."""
LENGTHS = [6, 3, 1, 4, 2, 5, 6, 2, 3]
WIDTH = 6


class ContractError(AssertionError):
    """Every case that a component failed, one line each: what was seen, and how to mend it."""


@dataclass(frozen=True)
class Case:
    """One promise of a slot."""

    name: str
    fix: str
    run: Callable[..., None]


def case(cases: list[Case], name: str, fix: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a case; it gets a fresh copy of the component, and raises where the promise is broken."""

    def register(run: Callable[..., None]) -> Callable[..., None]:
        cases.append(Case(name, fix, run))
        return run

    return register


def run_cases(component: Any, cases: Sequence[Case], *more: Any, skip: Sequence[str] = (), fresh: bool = True) -> None:
    """Run all cases; raises ContractError that lists the failures.  ``skip``: names of cases to leave out."""
    unknown = set(skip) - {c.name for c in cases}
    if unknown:
        raise ValueError(f"no case is named {sorted(unknown)[0]!r}; they are {', '.join(c.name for c in cases)}")
    failures = []
    for one in cases:
        if one.name in skip:
            continue
        try:
            one.run(copy.deepcopy(component) if fresh else component, *more)
        except Exception as error:
            failures.append(f"  {one.name}: {_seen(error)}. Fix: {one.fix}")
    if failures:
        name = getattr(component, "__name__", type(component).__name__)
        raise ContractError(f"{name} breaks {len(failures)} of {len(cases)} cases:\n" + "\n".join(failures))


def _seen(error: Exception) -> str:
    text = " ".join(str(error).split())[:300].rstrip(".")
    if isinstance(error, AssertionError) and text:
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {type(error).__name__}: {text} ({last.filename} line {last.lineno})"


# ---- what is compared


def same(found: Tensor, wanted: Tensor, what: str) -> None:
    """Refuse tensors that differ by more than rounding; NaN equals NaN."""
    assert found.shape == wanted.shape, f"{what}: shape {tuple(found.shape)} became {tuple(wanted.shape)}"
    a, b = found.detach().double(), wanted.detach().double()
    close = torch.isclose(a, b, rtol=1e-6, atol=1e-8, equal_nan=True)
    if not bool(close.all()):
        at = tuple((~close).nonzero()[0].tolist())
        raise AssertionError(f"{what}: at {list(at)} {float(b[at]):.6g} became {float(a[at]):.6g}")


def finite(values: Tensor, what: str) -> None:
    """Refuse NaN and infinity."""
    bad = ~values.isfinite()
    assert not bool(bad.any()), f"{what} holds {float(values[bad][0])}"


def floating(values: Any, shape: tuple[int, ...], what: str) -> None:
    """Refuse what is no float tensor of this shape."""
    assert isinstance(values, Tensor), f"{what} is a {type(values).__name__}, not a tensor"
    assert values.is_floating_point(), f"{what} has dtype {values.dtype}, not a float"
    assert tuple(values.shape) == shape, f"{what} has shape {tuple(values.shape)}, not {shape}"


def restored(component: Any, original: Any) -> Any:
    """A fresh copy of ``original`` with the memory of ``component``, by way of JSON."""
    state = component.state_dict()
    try:
        plain = json.loads(json.dumps(state))
    except TypeError as error:
        raise AssertionError(f"state_dict is not plain data: {error}") from None
    if plain:
        original.load_state_dict(plain)
    return original


def without_device() -> torch.device:
    """Where tensors made without a device go in a device case: none that holds numbers, so that they cannot pass."""
    return torch.device("meta")


# ---- the rollout


def example(scores: Sequence[float] | None = None, *, seed: int = 0) -> RolloutBatch:
    """Nine completions of three prompts and a greedy completion for each prompt, with every optional field filled.

    Groups are interleaved and of unequal size, one is tied; rows differ in length, and one has an untrained token in
    its middle.  Off the mask stand numbers that must not matter.  Floats are float64.
    """
    draw = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=draw, dtype=torch.float64)

    groups = torch.tensor([*GROUPS, 0, 1, 2])
    lengths = torch.tensor([*LENGTHS, 3, 2, 4])
    role = torch.tensor([POLICY] * len(GROUPS) + [BASELINE] * 3)
    rows = len(groups)
    written = torch.arange(WIDTH) < lengths[:, None]
    mask = written & (role != BASELINE)[:, None]
    mask[6, 2] = False
    total = torch.tensor([*(scores or SCORES), 0.25, 0.5, 1.0], dtype=torch.float64)
    old = uniform(-3.0, -0.2, rows, WIDTH)
    return RolloutBatch(
        prompt_ids=torch.ones(rows, 2, dtype=torch.long),
        prompt_mask=torch.ones(rows, 2, dtype=torch.bool),
        completion_ids=torch.where(written, torch.randint(3, 20, (rows, WIDTH), generator=draw), 0),
        completion_mask=written,
        mask=mask,
        group_ids=groups,
        row_ids=torch.arange(rows) + 100,
        truncated=lengths == WIDTH,
        temperature=1.0,
        behaviour_logp=old + uniform(-0.05, 0.05, rows, WIDTH),
        samples=[_sample(i, int(groups[i]), int(lengths[i])) for i in range(rows)],
        row_role=role,
        max_new_tokens=WIDTH,
        seed=7,
        old_logp=old,
        ref_logp=old + uniform(-0.5, 0.5, rows, WIDTH),
        entropy=uniform(0.1, 2.0, rows, WIDTH),
        rewards={"exact": total.clone(), "quality": uniform(0.0, 1.0, rows)},
        scores=total,
        solved=total >= 1,
        values=uniform(0.0, 1.0, rows, WIDTH),
        features={"evaluator": uniform(0.0, 1.0, rows)},
    )


def _sample(row: int, group: int, length: int) -> Sample:
    texts = ("4", "it is 4", "", "five", "#### 4", "<answer>4</answer>")
    return Sample(f"{group}+4=", texts[row % len(texts)], str(group + 4), {}, length, length == WIDTH)


def abstained(batch: RolloutBatch, rows: Sequence[int]) -> RolloutBatch:
    """The batch with rows that no reward could score, as the module leaves them: NaN, and off the mask."""
    out = copy.deepcopy(batch)
    for row in rows:
        assert out.scores is not None
        assert out.solved is not None
        out.scores[row] = float("nan")
        out.solved[row] = False
        out.mask[row] = False
        for column in out.rewards.values():
            column[row] = float("nan")
    return out


def for_losses() -> RolloutBatch:
    """The example as the losses see it: with advantages, an expert row, a row without one, an abstained one."""
    batch = abstained(example(), [8])
    batch.row_role[5] = EXPERT
    draw = torch.Generator().manual_seed(5)
    rows = torch.rand(len(batch), generator=draw, dtype=torch.float64) * 2 - 1
    rows[3] = 0.0
    batch.advantages = torch.where(batch.mask, rows[:, None], 0.0)
    return batch


def logp_of(batch: RolloutBatch, *, move: float = 0.4, seed: int = 3) -> Tensor:
    """Log-probs of a policy that has moved by up to ``move`` nats per token, 0 off the mask."""
    draw = torch.Generator().manual_seed(seed)
    assert batch.old_logp is not None
    moved = batch.old_logp + move * (2 * torch.rand(batch.old_logp.shape, generator=draw, dtype=torch.float64) - 1)
    return torch.where(batch.mask, moved, 0.0)


def context(
    batch: RolloutBatch, logp: Tensor, entropy: Tensor | None = None, total: Counts | None = None
) -> LossContext:
    """What the loss components see, with one ratio per token; ``total``: normalisers of the whole minibatch."""
    assert batch.old_logp is not None
    ratio = torch.where(batch.mask, logp - batch.old_logp.to(logp.dtype), torch.zeros_like(logp))
    entropy = batch.entropy if entropy is None else entropy
    total = total or counts([batch.mask], batch.group_ids)[0]
    return LossContext(batch, logp, ratio, entropy, total, CLOCK, batch.seed, MetricBag())


def garbled(batch: RolloutBatch) -> RolloutBatch:
    """The batch with other numbers wherever the mask is False; advantages are 0 there by contract."""
    out = copy.deepcopy(batch)
    for name in ("behaviour_logp", "old_logp", "ref_logp", "entropy", "values"):
        value = getattr(out, name)
        setattr(out, name, torch.where(out.mask, value, -5.5 - value))
    return out


def widened(batch: RolloutBatch, by: int = 2) -> RolloutBatch:
    """The batch with more padding behind every completion."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(batch):
        value = getattr(batch, f.name)
        if isinstance(value, Tensor) and value.dim() > 1 and not f.name.startswith("prompt_"):
            changes[f.name] = torch.nn.functional.pad(value, (0, by))
    return dataclasses.replace(copy.deepcopy(batch), **changes)


def order(batch: RolloutBatch) -> Tensor:
    """A permutation of the rows that leaves none in place."""
    return torch.arange(len(batch)).roll(5).flip(0)


PARTS = ([0, 2, 5, 9], [1, 4, 6, 8, 10], [3, 7, 11])
"""The rows of the example by group: micro-batches that cut no group."""
CUT = ([0, 1, 3], [2, 4, 5, 6], [7, 8, 9, 10, 11])
"""Micro-batches that cut groups."""
