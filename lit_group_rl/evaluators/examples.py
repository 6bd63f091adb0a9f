"""What an evaluator learns from: token rows with labels, and the buffer that keeps old ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_group_rl.functional.replay import draw_indices, replay_weights
from lit_group_rl.functional.rng import seed_of, uniforms
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Component, RolloutBatch

Row = tuple[int, ...]
"""Token ids of prompt and completion."""


class Example(NamedTuple):
    """One label.  With a second row it says whether the first is the better one."""

    first: Row
    second: Row
    label: float
    step: int
    """RL step in which it was drawn."""


def token_rows(batch: RolloutBatch, question: Sequence[int], limit: int) -> list[Row]:
    """Prompt, completion and question of every row, its last ``limit`` tokens."""
    rows = []
    for i in range(len(batch)):
        prompt = batch.prompt_ids[i][batch.prompt_mask[i]].tolist()
        completion = batch.completion_ids[i][batch.completion_mask[i]].tolist()
        rows.append(tuple([*prompt, *completion, *question][-limit:]))
    return rows


def reference_rows(
    batch: RolloutBatch, encode_answer: Callable[[str], list[int]], question: Sequence[int], limit: int
) -> dict[int, Row]:
    """Group id -> the same with the reference answer in place of the completion; no entry where there is none."""
    rows: dict[int, Row] = {}
    for i, group in enumerate(batch.group_ids.tolist()):
        answer = batch.samples[i].answer
        if answer and group not in rows:
            prompt = batch.prompt_ids[i][batch.prompt_mask[i]].tolist()
            rows[group] = tuple([*prompt, *encode_answer(answer), *question][-limit:])
    return rows


def outcome_examples(
    rows: Sequence[Row], right: Sequence[bool], used: Sequence[bool], step: int
) -> list[list[Example]]:
    """Per row: whether the verifier found it right; nothing for rows that are not ``used``."""
    return [[Example(r, (), float(z), step)] if u else [] for r, z, u in zip(rows, right, used, strict=True)]


def adversarial_examples(rows: Sequence[Row], references: Sequence[Row | None], step: int) -> list[list[Example]]:
    """Per row: 0 for what the policy wrote, 1 for the reference answer; nothing without a reference."""
    return [
        [] if ref is None else [Example(row, (), 0.0, step), Example(ref, (), 1.0, step)]
        for row, ref in zip(rows, references, strict=True)
    ]


def preference_examples(
    rows: Sequence[Row],
    right: Sequence[bool],
    used: Sequence[bool],
    group_ids: Sequence[int],
    keys: Sequence[int],
    step: int,
) -> list[list[Example]]:
    """Per right row: better than one wrong row of its group, drawn by the row's key; nothing where there is none."""
    losers: dict[int, list[int]] = {}
    for i, (z, u, g) in enumerate(zip(right, used, group_ids, strict=True)):
        if u and not z:
            losers.setdefault(g, []).append(i)
    out: list[list[Example]] = []
    for i, row in enumerate(rows):
        candidates = losers.get(group_ids[i], []) if right[i] and used[i] else []
        other = [rows[candidates[keys[i] % len(candidates)]]] if candidates else []
        out.append([Example(row, loser, 1.0, step) for loser in other])
    return out


class ReplayBuffer(Component):
    """The newest ``capacity`` examples, first in first out; old ones are drawn less often, too old ones never.

    Its content is the same on every process.
    """

    def __init__(self, capacity: int, half_life: float, max_staleness: int) -> None:
        """``half_life`` and ``max_staleness`` count RL steps."""
        self.capacity, self.half_life, self.max_staleness = capacity, half_life, max_staleness
        require(capacity >= 1, self, "capacity", "must be at least 1")
        require(half_life > 0, self, "half_life", "must be above 0")
        require(max_staleness >= 1, self, "max_staleness", "must be at least 1")
        self.examples: deque[Example] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self.examples)

    def push(self, examples: Iterable[Example]) -> None:
        """Add at the end; the oldest leave."""
        self.examples.extend(examples)

    def draw(self, step: int, at: Tensor) -> list[Example]:
        """One example per uniform in ``at`` [k], in proportion to 2^(-age / half_life); empty if all are too old."""
        ages = torch.tensor([step - e.step for e in self.examples], dtype=torch.float64)
        weights = replay_weights(ages, self.half_life, self.max_staleness)
        if not weights.any():
            return []
        return [self.examples[i] for i in draw_indices(weights, at).tolist()]

    def companions(self, keys: Sequence[int], fresh_share: float, step: int) -> list[list[Example]]:
        """Old examples to go with each fresh one, so that fresh ones are ``fresh_share`` of all on average.

        ``keys`` hold one integer per fresh example: what it gets depends on that, the step and the buffer.
        """
        if not self.examples or not keys:
            return [[] for _ in keys]
        whole, part = divmod((1 - fresh_share) / fresh_share, 1.0)
        extra = (uniforms(keys, 0, 1)[:, 0] < part).long() + int(whole)
        places = uniforms(keys, 1, int(extra.max()))
        wanted = torch.arange(places.shape[1])[None] < extra[:, None]
        drawn = iter(self.draw(step, places[wanted]))
        return [list(islice(drawn, n)) for n in extra.tolist()]

    def state_dict(self) -> dict[str, Any]:
        if not self.examples:
            return {}
        rows = [row for e in self.examples for row in (e.first, e.second)]
        return {
            "tokens": torch.tensor([t for row in rows for t in row], dtype=torch.int32),
            "lengths": torch.tensor([len(row) for row in rows], dtype=torch.int32),
            "labels": [e.label for e in self.examples],
            "steps": [e.step for e in self.examples],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = [tuple(part.tolist()) for part in state["tokens"].split(state["lengths"].tolist())]
        self.examples.clear()
        self.push(map(Example, rows[::2], rows[1::2], state["labels"], state["steps"]))


def row_keys(purpose: str, seed: int, step: int, row_ids: Sequence[int]) -> list[int]:
    """Keys of a draw per row: of the run's seed, the RL step and the row alone, never of layout."""
    return [seed_of(seed, purpose, step, row) for row in row_ids]
