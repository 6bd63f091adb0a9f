"""Turns of the policy and replies of an environment, put together into one completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lit_group_rl.drawn import Drawn
from lit_group_rl.environments.base import Environment, Turn
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.types import Prompt, RecipeError

if TYPE_CHECKING:
    from lit_group_rl.policy import HFPolicy

Generate = Callable[..., Drawn]
"""``policy.generate``, or that of a rollout engine."""


@dataclass
class _Episode:
    prompt: Prompt
    context: list[int]
    """Token ids of the prompt."""
    key: int
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    """True = the policy wrote the token."""
    turns: list[str] = field(default_factory=list)
    """What the policy wrote in each of them."""
    start: int = 0
    """Where the present turn begins."""
    truncated: bool = False

    def left(self, limit: int) -> int:
        return limit - sum(self.written)

    def add(self, ids: list[int], logp: list[float], entropy: list[float], *, written: bool) -> None:
        self.ids += ids
        self.logp += logp
        self.entropy += entropy
        self.written += [written] * len(ids)


def play(
    generate: Generate,
    policy: HFPolicy,
    environment: Environment,
    prompts: Sequence[Prompt],
    *,
    copies: int,
    keys: Sequence[int],
    max_new_tokens: int,
    **law: Any,
) -> Drawn:
    """``copies`` episodes of every prompt, members of a group next to each other.

    Every turn is drawn by ``generate`` behind all that came before, token by token as it was, so that log-probs are
    those of the whole completion.  ``max_new_tokens`` counts what the policy writes in an episode.  The tokens of
    replies are in ``mask`` and not in ``written``; their log-prob and entropy are 0.
    """
    episodes = [
        _Episode(prompt, policy.encode(prompt), key)
        for prompt, key in zip([p for p in prompts for _ in range(copies)], keys, strict=True)
    ]
    live, exact, told = episodes, True, True
    for number in range(environment.max_turns):
        turn_keys = [e.key if number == 0 else seed_of(e.key, "turn", number) for e in live]
        # the first turns of a group share their prompt
        contexts = [e.context for e in live[::copies]] if number == 0 else [e.context + e.ids for e in live]
        drawn = generate(
            contexts,
            copies=copies if number == 0 else 1,
            keys=turn_keys,
            max_new_tokens=max(e.left(max_new_tokens) for e in live),
            stops=environment.stops,
            **law,
        )
        exact, told = exact and drawn.exact, told and drawn.entropy is not None
        for row, episode in enumerate(live):
            _take(episode, drawn, row, max_new_tokens)
        for episode, said in zip(live, policy.decode([e.ids[e.start :] for e in live]), strict=True):
            episode.turns.append(said)
        live = _answered(environment, policy, [e for e in live if not e.truncated], number, max_new_tokens)
        if not live:
            break
    return _padded(episodes, policy, drawn.ids.device, exact, told)


def _take(episode: _Episode, drawn: Drawn, row: int, limit: int) -> None:
    """Add a turn to its episode, cut to what the policy has left."""
    length, left = int(drawn.mask[row].sum()), episode.left(limit)
    n = min(length, left)
    ids, logp = drawn.ids[row, :n].tolist(), drawn.logp[row, :n].tolist()
    entropy = [0.0] * n if drawn.entropy is None else drawn.entropy[row, :n].tolist()
    episode.start = len(episode.ids)
    episode.add(ids, logp, entropy, written=True)
    episode.truncated = length > left or bool(drawn.truncated[row])


def _answered(
    environment: Environment, policy: HFPolicy, asked: list[_Episode], number: int, limit: int
) -> list[_Episode]:
    """Ask the environment; the episodes that go on, with their replies."""
    if not asked:
        return []
    ends = set(policy.eos_ids)
    turns = [
        Turn(e.prompt, text, e.turns[-1], number, e.ids[-1] in ends, seed_of(e.key, "environment", number))
        for e, text in zip(asked, policy.decode([e.ids for e in asked]), strict=True)
    ]
    replies = list(environment.reply(turns))
    if len(replies) != len(turns) or not all(r is None or isinstance(r, str) for r in replies):
        raise RecipeError(
            f"model.sampler.environment: {type(environment).__name__}.reply must give {len(turns)} texts or None, got "
            f"{len(replies)} of {', '.join(sorted({type(r).__name__ for r in replies}))}. Return one for each turn"
        )
    last = number + 1 == environment.max_turns
    going = []
    for episode, turn, reply in zip(asked, turns, replies, strict=True):
        if reply is None:
            continue
        if last or episode.left(limit) <= 0:
            episode.truncated = not turn.ended
            continue
        ids = policy.tokenizer(reply, add_special_tokens=False).input_ids[: environment.max_reply_tokens]
        episode.add(ids, [0.0] * len(ids), [0.0] * len(ids), written=False)
        going.append(episode)
    return going


def _padded(episodes: list[_Episode], policy: HFPolicy, device: torch.device, exact: bool, told: bool) -> Drawn:
    width = max(len(e.ids) for e in episodes)

    def table(rows: list[list[Any]], fill: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=dtype, device=device)

    return Drawn(
        ids=table([e.ids for e in episodes], policy.pad_id, torch.long),
        mask=table([[True] * len(e.ids) for e in episodes], False, torch.bool),
        logp=table([e.logp for e in episodes], 0.0, torch.float32),
        entropy=table([e.entropy for e in episodes], 0.0, torch.float32) if told else None,
        truncated=torch.tensor([e.truncated for e in episodes], device=device),
        exact=exact,
        written=table([e.written for e in episodes], False, torch.bool),
        turns=[tuple(e.turns) for e in episodes],
    )
