"""Columns of a table to prompts."""

from __future__ import annotations

import difflib
import logging
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lit_group_rl.data.base import PromptSource
from lit_group_rl.data.readers import Row
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.types import Prompt, RecipeError

log = logging.getLogger(__name__)

Text = str | list[dict[str, str]]
USUAL = {
    "prompt": ("prompt", "messages", "question", "problem", "instruction"),
    "answer": ("answer", "solution", "gold", "target", "label"),
}
"""Names that data sets give these columns, suggested where the one asked for is missing."""


def asked(text: Text, instruction: str, chat: bool) -> Text:
    """The question as it is put: the instruction behind it (in a chat, behind its last message)."""
    if isinstance(text, list):
        if not instruction:
            return text
        last = text[-1]
        return [*text[:-1], {**last, "content": f"{last['content']}\n{instruction}"}]
    text = f"{text}\n{instruction}" if instruction else text
    return [{"role": "user", "content": text}] if chat else text


@dataclass(frozen=True, kw_only=True)
class ColumnSource(PromptSource):
    """Which columns are prompt and answer; every other one goes into ``Prompt.fields`` under its name.

    The held-out prompts are chosen by their text alone, so they stay the same when rows are added or sorted, and a
    text that is held out is never trained on.
    """

    prompt: str = "prompt"
    """Column with the prompt: text, or a list of chat messages with role and content; 'a.b' is b inside of a."""
    answer: str | None = "answer"
    """Column with the right answer; null if there is none.  The prompt's column again: the messages end with it."""
    answer_after: str = ""
    """The answer is what stands behind the last one of this mark (GSM8K: '####'); empty takes all of it."""
    instruction: str = ""
    """Text put on a line of its own behind every prompt."""
    chat: bool = False
    """Make a plain prompt the message of a user, for models with a chat template."""
    number_to_text: bool = False
    """Accept numbers in the prompt or answer column and write them out."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Refuse the data at the first row that cannot be used, or leave such rows out and count them."""
    content_seed: int = 0
    """Chooses which prompts are held out."""

    @abstractmethod
    def rows(self) -> tuple[Iterable[Row], Iterable[Row] | None]:
        """Rows to train on, and those to hold out where the data come with their own."""

    @property
    @abstractmethod
    def whence(self) -> str:
        """The file or data set, for messages."""

    def load(self, heldout_size: int) -> tuple[list[Prompt], list[Prompt]]:
        train_rows, heldout_rows = self.rows()
        train = self._prompts(train_rows, "training")
        if heldout_rows is None:
            return self._split(train, heldout_size)
        heldout = _distinct(self._prompts(heldout_rows, "held-out"))[:heldout_size]
        taken = {repr(p.text) for p in heldout}
        kept = [p for p in train if repr(p.text) not in taken]
        if len(kept) < len(train):
            log.warning("data: %d training prompts are also held out and are left out", len(train) - len(kept))
        if not kept:
            raise RecipeError("data.source: every training prompt is also held out. Give other held-out data")
        return kept, heldout

    def _split(self, prompts: Sequence[Prompt], heldout_size: int) -> tuple[list[Prompt], list[Prompt]]:
        distinct = _distinct(prompts)
        if len(distinct) <= heldout_size:
            raise RecipeError(
                f"data.heldout_size: the data have {len(distinct)} different prompts, so {heldout_size} cannot be held "
                "out. Lower data.heldout_size or give more data"
            )
        order = sorted(distinct, key=lambda p: seed_of("heldout", self.content_seed, repr(p.text)))
        heldout = order[:heldout_size]
        taken = {repr(p.text) for p in heldout}
        return [p for p in prompts if repr(p.text) not in taken], heldout

    def _prompts(self, rows: Iterable[Row], split: str) -> list[Prompt]:
        prompts, bad, first = [], 0, ""
        for place, row in rows:
            try:
                if isinstance(row, str):
                    raise _BadRow(row)
                prompts.append(self._one(row, place))
            except _BadRow as problem:
                if self.on_bad_row == "error":
                    raise RecipeError(
                        f"data.source: {place}: {problem}. on_bad_row: skip leaves such rows out"
                    ) from None
                bad += 1
                first = first or f"{place}: {problem}"
        if not prompts:
            found = f"{bad} rows, none of which can be used; the first: {first}" if bad else "no rows"
            raise RecipeError(
                f"data.source: {self.whence}: the {split} data have {found}. Give data with at least one good row"
            )
        if bad:
            log.warning("data: %d of %d %s rows are left out; the first: %s", bad, bad + len(prompts), split, first)
        return prompts

    def _one(self, row: dict[str, Any], place: str) -> Prompt:
        answer: str | None = None
        given = _find(row, self.prompt)
        text = self._messages(given) if isinstance(given, list) else self._text(row, "prompt")
        if isinstance(text, list) and text[-1]["role"] == "assistant":
            if self.answer != self.prompt:
                raise _BadRow(
                    f"the messages in {self.prompt!r} end with the assistant's, which leaves nothing to say. "
                    f"Set data.source.answer to {self.prompt} to take it as the answer, or remove it"
                )
            *text, last = text
            answer = last["content"]
        elif self.answer is not None and self.answer == self.prompt:
            raise _BadRow(
                f"data.source.answer is {self.answer!r}, but no answer of the assistant ends the messages there. "
                "Set data.source.answer to the column with the answer, or to null if there is none"
            )
        elif self.answer is not None:
            answer = self._text(row, "answer")
        if not (text if isinstance(text, list) else text.strip()):
            raise _BadRow(f"the column {self.prompt!r} is empty")
        if answer is not None and self.answer_after:
            _, mark, answer = answer.rpartition(self.answer_after)
            if not mark or not answer.strip():
                raise _BadRow(
                    f"the answer has nothing behind {self.answer_after!r}. "
                    "Correct it, or empty data.source.answer_after to take all of it"
                )
            answer = answer.strip()
        fields = {k: v for k, v in row.items() if k not in (self.prompt, self.answer)}
        return Prompt(asked(text, self.instruction, self.chat), answer, fields, place)

    def _text(self, row: dict[str, Any], option: str) -> str:
        column = getattr(self, option)
        value = _find(row, column)
        if value is _MISSING:
            used = (self.prompt, self.answer)
            close = difflib.get_close_matches(column, row, n=1, cutoff=0.4)
            close = close or [name for name in USUAL[option] if name in row and name not in used]
            raise _BadRow(
                f"no column {column!r} (columns: {', '.join(map(str, row)) or 'none'}). "
                + (f"Did you mean {close[0]!r}? " if close else "")
                + f"Set data.source.{option} to the right column"
                + (", or to null if there are no answers" if option == "answer" else "")
            )
        if self.number_to_text and isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            number = isinstance(value, int | float) and not isinstance(value, bool)
            hint = ". Set data.source.number_to_text: true to accept numbers" if number else ""
            raise _BadRow(f"the column {column!r} is {type(value).__name__} ({_short(value)}), not text{hint}")
        _readable(value, column)
        return value

    def _messages(self, messages: list[Any]) -> list[dict[str, str]]:
        ok = messages and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in messages
        )
        if not ok:
            raise _BadRow(
                f"the column {self.prompt!r} is a list but not one of messages with the texts role and content: "
                f"{_short(messages)}"
            )
        for message in messages:
            _readable(message["content"], self.prompt)
        return [{"role": m["role"], "content": m["content"]} for m in messages]


class _BadRow(Exception):
    pass


_MISSING = object()


def _find(row: dict[str, Any], column: str) -> Any:
    """The value of a column, or of a key inside one ('reward_model.ground_truth')."""
    if column in row:
        return row[column]
    outer, dot, inner = column.partition(".")
    return _find(row[outer], inner) if dot and isinstance(row.get(outer), dict) else _MISSING


def _readable(text: str, column: str) -> None:
    for at, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            what = "a NUL character" if character == "\0" else "half of a surrogate pair"
            raise _BadRow(f"the column {column!r} has {what} at position {at + 1}. Remove it")


def _short(value: object, limit: int = 80) -> str:
    text = ascii(value)
    return text if len(text) <= limit else text[:limit] + "..."


def _distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    seen: dict[str, Prompt] = {}
    for p in prompts:
        seen.setdefault(repr(p.text), p)
    return list(seen.values())
