"""Prompts that leave no room for a completion, found before the first step."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from lit_group_rl.types import Prompt, RecipeError

log = logging.getLogger(__name__)

OnLongPrompt = Literal["error", "drop", "truncate_left"]
ENOUGH = 64
"""Characters per token of the context that are counted at most: what is longer than that is too long anyway."""


def fitting(
    prompts: Sequence[Prompt], policy: Any, new_tokens: int, on_long: OnLongPrompt, split: str
) -> Sequence[Prompt]:
    """The prompts that fit the context of ``policy`` with ``new_tokens`` behind them.

    The others are refused, left out, or, with 'truncate_left', kept: the policy then cuts their beginning off.
    Raises RecipeError where nothing fits or, with 'error', where one does not.
    """
    limit = policy.context_length - new_tokens
    if limit < 1:
        raise RecipeError(
            f"model.sampler.max_new_tokens: {new_tokens} new tokens leave no room for a prompt in the "
            f"{policy.context_length} tokens of the policy's context. Lower it"
        )
    too_long = list(_too_long(prompts, policy, limit))
    if not too_long:
        return prompts
    length, at = max(too_long, key=lambda found: found[0])
    first = prompts[at].place or f"prompt {at + 1}"
    told = (
        f"{len(too_long)} of {len(prompts)} {split} prompts do not fit: the longest, {first}, has "
        f"{'over ' if _cut(prompts[at], limit) is not prompts[at] else ''}{length} tokens, and {new_tokens} new ones "
        f"leave room for {limit} in the context of {policy.context_length}"
    )
    if on_long == "error":
        raise RecipeError(
            f"data.source: {told}. Set data.on_long_prompt to drop or truncate_left, lower "
            "model.sampler.max_new_tokens, or shorten them"
        )
    if on_long == "truncate_left":
        log.warning("data: %s; their beginning is cut off", told)
        policy.prompt_limit = limit
        return prompts
    if len(too_long) == len(prompts):
        raise RecipeError(f"data.source: {told}, so none is left. Lower model.sampler.max_new_tokens or shorten them")
    log.warning("data: %s; they are left out", told)
    dropped = {at for _, at in too_long}
    return [p for i, p in enumerate(prompts) if i not in dropped]


def _too_long(prompts: Sequence[Prompt], policy: Any, limit: int) -> Iterator[tuple[int, int]]:
    """(tokens, number) of the prompts that are too long.

    A text has at most as many tokens as bytes, beside what the tokenizer and the chat template add, so that only long
    ones need to be counted.
    """
    added = len(policy.encode(Prompt("a")))
    for i, prompt in enumerate(prompts):
        parts = [prompt.text] if isinstance(prompt.text, str) else [m["content"] for m in prompt.text]
        if sum(len(text.encode()) + added for text in parts) > limit:
            length = len(policy.encode(_cut(prompt, limit)))
            if length > limit:
                yield length, i


def _cut(prompt: Prompt, limit: int) -> Prompt:
    if isinstance(prompt.text, str) and len(prompt.text) > ENOUGH * limit:
        return dataclasses.replace(prompt, text=prompt.text[: ENOUGH * limit])
    return prompt
