"""What passes between the parts: prompts and samples, the rollout batch, the context of a loss.

Letters for dimensions, used everywhere:  B completions (rows), T completion tokens, S prompt tokens, P prompts,
V vocabulary, d hidden width.  ``mask`` is True where a token counts.  ``*_logp`` are log-probabilities in nats at the
sampling temperature.  A ``log_ratio`` is a difference of them, a ``ratio`` its exponential.
"""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from lit_group_rl.metric_bag import MetricBag

if TYPE_CHECKING:
    from lit_group_rl.schedules.base import Clock

POLICY, BASELINE, EXPERT = 0, 1, 2
"""Roles of a row: drawn to be trained on; drawn only to be compared with (greedy); given by the data."""


@dataclass(frozen=True)
class Prompt:
    """One question of the data: plain text or chat messages, the right answer, and every other column."""

    text: str | list[dict[str, str]]
    answer: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    """Where it comes from, for messages: 'mine.jsonl line 12'."""


@dataclass(frozen=True)
class Sample:
    """One completion as a reward sees it."""

    prompt: str | list[dict[str, str]]
    completion: str
    """The text without the end token."""
    answer: str | None
    fields: Mapping[str, Any]
    num_tokens: int
    """Completion tokens that the policy wrote, the end token included."""
    truncated: bool
    """The limit came before an end token."""
    turns: tuple[str, ...] = ()
    """Where an environment took part: what the policy wrote in each of its turns."""

    def copied(self) -> Sample:
        """For code that may change what it is given."""
        if isinstance(self.prompt, str) and not self.fields:
            return self
        return dataclasses.replace(self, prompt=copy.deepcopy(self.prompt), fields=copy.deepcopy(dict(self.fields)))


@dataclass(frozen=True)
class Problem:
    """Something a check found: which field, what is wrong, how to mend it."""

    field: str
    message: str
    fix: str
    warning: bool = False

    def __str__(self) -> str:
        return f"{self.field}: {self.message}. {self.fix}"


class RecipeError(ValueError):
    """A refusal before the first step; its text is all the user needs to see."""


class Component(ABC):  # noqa: B024 - its methods have defaults; each slot adds abstract ones
    """Base of every slot.  Most components are frozen dataclasses; those with memory also give ``state_dict``."""

    needs: ClassVar[frozenset[str]] = frozenset()
    """What the module must compute for it: any of 'ref_logp', 'old_logp', 'entropy', 'hidden', 'values'."""

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        """Contradictions with the rest of the recipe, found before the first step."""
        return ()

    def prepare(self, batch: RolloutBatch, clock: Clock) -> None:  # noqa: B027 - optional
        """Look at a whole rollout once, after its advantages are known (running statistics, group weights)."""

    def state_dict(self) -> dict[str, Any]:
        """Plain data that must survive an interruption; empty for components without memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have no memory
        """Take back what ``state_dict`` gave."""


def walk(component: object, path: str) -> Iterator[tuple[str, Component]]:
    """A component and all that are nested in its attributes, with their paths."""
    if isinstance(component, Mapping):
        for key, value in component.items():
            yield from walk(value, f"{path}.{key}")
    if not isinstance(component, Component):
        return
    yield path, component
    for name, value in list(vars(component).items()):
        if isinstance(value, Component | dict) and not name.startswith("_"):
            yield from walk(value, f"{path}.{name}")


@dataclass(frozen=True)
class Recipe:
    """The parts and numbers of a run, as components see them when they check each other."""

    parts: Mapping[str, Any]
    """Slot name -> component, dict of components, or None."""
    prompts_per_step: int
    group_size: int
    updates_per_rollout: int

    def components(self) -> Iterator[tuple[str, Component]]:
        """All components with their paths, nested ones too."""
        for slot, part in self.parts.items():
            yield from walk(part, slot)

    def needs(self, what: str) -> list[str]:
        """Paths of the components that ask for ``what``."""
        return [path for path, part in self.components() if what in part.needs]

    def place(self, part: Component) -> str:
        """Where a component stands: 'model.aux_losses.kl'."""
        return next((f"model.{path}" for path, own in self.components() if own is part), "model")

    def has_rows(self, role: int) -> bool:
        """Whether the sampler makes rows of this role."""
        sampler = self.parts.get("sampler")
        return sampler is None or role in sampler.roles

    def missing_reward(self, field: str, name: str) -> Iterator[Problem]:
        """A problem if a component reads the column of a reward that the recipe does not have."""
        known = self.parts.get("rewards") or {}
        if name not in known:
            yield Problem(field, f"the recipe has no reward named {name!r}", f"Use one of: {', '.join(known)}")


@dataclass
class RolloutBatch:
    """Completions of one RL step with all that is known of them.  Optional fields are None until something asks."""

    prompt_ids: Tensor
    """[B, S] left-padded."""
    prompt_mask: Tensor
    """[B, S] True = real token."""
    completion_ids: Tensor
    """[B, T] right-padded, the end token included."""
    completion_mask: Tensor
    """[B, T] True = real token."""
    mask: Tensor
    """[B, T] True = trained token: a subset of ``own_mask``."""
    group_ids: Tensor
    """[B] rows with equal ids answer the same prompt; unique over processes within the step."""
    row_ids: Tensor
    """[B] unique over processes within the step and independent of layout; the key of per-row noise."""
    truncated: Tensor
    """[B] True = the length limit came before an end token."""
    temperature: float
    """At which the completions were drawn and all log-probs are taken."""
    behaviour_logp: Tensor
    """[B, T] as the sampler drew the tokens, its truncation included."""
    samples: list[Sample]
    row_role: Tensor
    """[B] POLICY, BASELINE or EXPERT."""
    exact_logp: bool = False
    """``behaviour_logp`` is what the trainer would compute, so it may serve as ``old_logp``."""
    written: Tensor | None = None
    """[B, T] True = the policy wrote it; None = all of ``completion_mask``.  The rest came from an environment."""
    max_new_tokens: int = 0
    """The sampler's limit on what the policy writes, the end token included; 0 = not told."""
    seed: int = 0
    """Of the run; with the RL step and ``row_ids`` the key of per-row noise."""
    old_logp: Tensor | None = None
    ref_logp: Tensor | None = None
    entropy: Tensor | None = None
    """[B, T] of the sampling policy, nats; kept by the sampler for the log."""
    rewards: dict[str, Tensor] = field(default_factory=dict)
    """Per reward [B] float64, NaN = abstained."""
    scores: Tensor | None = None
    """[B] float64 weighted total; NaN = no reward could score the row."""
    solved: Tensor | None = None
    """[B] bool: the main reward reached its threshold."""
    token_rewards: Tensor | None = None
    """[B, T] float64, added by shapers (a KL penalty); None = none."""
    values: Tensor | None = None
    """[B, T] critic's prediction at the state that predicts token t."""
    advantages: Tensor | None = None
    returns: Tensor | None = None
    features: dict[str, Tensor] = field(default_factory=dict)
    """Row-aligned extras that components leave for each other, e.g. 'hidden' [B, T, d], detached."""
    metrics: MetricBag = field(default_factory=MetricBag)

    def __len__(self) -> int:
        return len(self.completion_ids)

    @property
    def lengths(self) -> Tensor:
        """[B] completion tokens, the end token and an environment's replies included."""
        return self.completion_mask.sum(1)

    @property
    def own_mask(self) -> Tensor:
        """[B, T] True = token that the policy wrote."""
        return self.completion_mask if self.written is None else self.written

    @property
    def own_lengths(self) -> Tensor:
        """[B] tokens that the policy wrote, the end token included."""
        return self.own_mask.sum(1)

    @property
    def counted(self) -> Tensor:
        """[B] rows that enter group statistics: scored, trained on somewhere, and drawn or given as a member."""
        counted = self.mask.any(1) & (self.row_role != BASELINE)
        return counted if self.scores is None else counted & ~self.scores.isnan()

    @property
    def totals(self) -> Tensor:
        """[B] float64 score plus all token rewards of the row; NaN = abstained."""
        assert self.scores is not None
        if self.token_rewards is None:
            return self.scores
        return self.scores + torch.where(self.mask, self.token_rewards, 0.0).sum(1)

    def rows(self, index: Tensor) -> RolloutBatch:
        """The rows at ``index`` [b], trimmed to their own longest prompt and completion."""
        at = index.tolist()
        first = int((~self.prompt_mask[index]).all(0).long().cumprod(0).sum()) if len(at) else 0
        last = max(1, int(self.lengths[index].max())) if len(at) else 1
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                changes[f.name] = _trim(value[index], f.name, first, last, self.completion_ids.shape[1])
            elif isinstance(value, list):
                changes[f.name] = [value[i] for i in at]
            elif f.name in ("rewards", "features"):
                changes[f.name] = {
                    k: _trim(v[index], k, first, last, self.completion_ids.shape[1]) for k, v in value.items()
                }
        return dataclasses.replace(self, **changes)

    @staticmethod
    def cat(batches: Sequence[RolloutBatch]) -> RolloutBatch:
        """One batch of several, padded to the longest prompt and completion."""
        if len(batches) == 1:
            return batches[0]
        width_s = max(b.prompt_ids.shape[1] for b in batches)
        width_t = max(b.completion_ids.shape[1] for b in batches)
        changes: dict[str, Any] = {}
        for f in dataclasses.fields(RolloutBatch):
            values = [getattr(b, f.name) for b in batches]
            if isinstance(values[0], Tensor):
                changes[f.name] = torch.cat([_pad(v, f.name, width_s, width_t) for v in values])
            elif isinstance(values[0], list):
                changes[f.name] = [x for v in values for x in v]
            elif f.name in ("rewards", "features"):
                changes[f.name] = {k: torch.cat([_pad(v[k], k, width_s, width_t) for v in values]) for k in values[0]}
            elif f.name == "exact_logp":
                changes[f.name] = all(values)
        metrics = MetricBag()
        for b in batches:
            metrics.merge(b.metrics)
        return dataclasses.replace(batches[0], metrics=metrics, **changes)


def _trim(value: Tensor, name: str, first: int, last: int, width: int) -> Tensor:
    if name.startswith("prompt_"):
        return value[:, first:]
    return value[:, :last] if value.dim() > 1 and value.shape[1] == width else value


def _pad(value: Tensor, name: str, width_s: int, width_t: int) -> Tensor:
    if value.dim() < 2:
        return value
    if name.startswith("prompt_"):
        return torch.nn.functional.pad(value, (width_s - value.shape[1], 0))
    return torch.nn.functional.pad(value, (0, 0) * (value.dim() - 2) + (0, width_t - value.shape[1]))


@dataclass(frozen=True)
class Advantages:
    """What an estimator gives: advantages [B, T] and, with a critic, its targets [B, T]."""

    values: Tensor
    returns: Tensor | None = None


@dataclass(frozen=True)
class Counts:
    """Normalisers of one update over the whole minibatch, all micro-batches and processes together."""

    tokens: float
    """Trained tokens."""
    rows: float
    """Rows with at least one trained token."""
    groups: float
    """Groups with at least one such row."""


@dataclass(frozen=True)
class Bounds:
    """A trust region: where the ratio may move, per token or broadcastable to [B, T].  None = no bound."""

    low: Tensor | None = None
    """Smallest ratio that still gives a gradient when the advantage is negative."""
    high: Tensor | None = None
    """Largest ratio that still gives a gradient when the advantage is positive."""
    cap: float | None = None
    """Upper limit of the ratio in the unclipped branch (two-sided clip)."""
    dual: float | None = None
    """Dual clip: for a negative advantage the loss is at most ``-dual * advantage``."""
    keep: Tensor | None = None
    """[B, T] False = no gradient from this token."""


@dataclass
class LossContext:
    """One micro-batch in the update phase."""

    batch: RolloutBatch
    logp: Tensor
    """[B, T] under the current policy, with gradient; 0 where the mask is False."""
    log_ratio: Tensor
    """[B, T] what the ratio component made of logp - old_logp, with gradient."""
    entropy: Tensor | None
    """[B, T] nats, with gradient, when a component asks."""
    counts: Counts
    clock: Clock
    seed: int
    metrics: MetricBag
    hidden: Tensor | None = None
    """[B, T, d] states that predict the tokens, with gradient while the policy learns, when a model asks."""

    @property
    def ratio(self) -> Tensor:
        """[B, T] exp(log_ratio), the exponent clamped to +-20 so that one token cannot overflow."""
        return self.log_ratio.clamp(-20.0, 20.0).exp()

    @property
    def advantages(self) -> Tensor:
        """[B, T] float of the logp's type."""
        assert self.batch.advantages is not None
        return self.batch.advantages.to(self.logp.dtype)

    @property
    def mask(self) -> Tensor:
        """[B, T] trained tokens."""
        return self.batch.mask
