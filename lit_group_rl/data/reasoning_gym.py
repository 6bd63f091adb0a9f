"""Tasks of reasoning-gym."""

from __future__ import annotations

import difflib
import importlib.util
import logging
from dataclasses import dataclass, field
from typing import Any

from lit_group_rl.data.base import PromptSource
from lit_group_rl.data.columns import asked
from lit_group_rl.functional.rng import seed_of
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Prompt, RecipeError

log = logging.getLogger(__name__)

CHECKED = frozenset(
    (
        *("base_conversion", "basic_arithmetic", "caesar_cipher", "chain_sum", "count_bits", "count_primes"),
        *("decimal_chain_sum", "fraction_simplification", "gcd", "lcm", "leg_counting", "letter_counting"),
        *("number_sequence", "products", "spell_backward"),
    )
)
"""Tasks that give the same items in every process and pay nothing for junk."""
HASH_SEED = frozenset(["codeio", "isomorphic_strings", "polynomial_multiplication", "ransom_note", "word_ladder"])
"""Tasks whose items change with Python's hash seed, so no run on them could be repeated or resumed."""
PAYS_JUNK = {
    "complex_arithmetic": "gives full marks to 'nan'",
    "game_of_life_halting": "gives full marks to any text",
    "coin_flip": "gives full marks to '0'",
}
TRIES = 20
"""Items generated for each prompt wanted, before the task counts as too small."""


@dataclass(frozen=True)
class ReasoningGym(PromptSource):
    """Questions of one task, generated here (extra ``reasoning-gym``); none is in both splits.

    ``Prompt.fields`` has task, task_config and entry, which ``ReasoningGymReward`` scores with.
    """

    task: str
    """Name of the task, e.g. ``chain_sum``."""
    config: dict[str, Any] = field(default_factory=dict)
    """Options of the task, e.g. ``{max_terms: 2}``; size and seed are set by this source."""
    train_size: int = 2000
    """Training prompts at most."""
    instruction: str = ""
    """Text put on a line of its own behind every question."""
    chat: bool = True
    """Make the question the message of a user, for models with a chat template."""
    content_seed: int = 0
    """Chooses the questions."""

    def __post_init__(self) -> None:
        require(self.train_size >= 1, self, "train_size", "must be at least 1")
        for name in ("size", "seed"):
            require(name not in self.config, self, "config", f"must not set {name}; use train_size and content_seed")

    def load(self, heldout_size: int) -> tuple[list[Prompt], list[Prompt]]:
        self._check()
        heldout = self._draw("heldout", heldout_size, set())
        if len(heldout) < heldout_size:
            raise RecipeError(self._too_small(len(heldout), heldout_size))
        train = self._draw("train", self.train_size, {repr(p.text) for p in heldout})
        if not train:
            raise RecipeError(self._too_small(len(heldout), heldout_size))
        return train, heldout

    def _too_small(self, found: int, heldout_size: int) -> str:
        return (
            f"data.heldout_size: {self.task} with these options gives about {found} different questions, so "
            f"{heldout_size} cannot be held out. Lower data.heldout_size or make data.source.config harder"
        )

    def _check(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise RecipeError(
                "data.source: ReasoningGym needs the package reasoning-gym. "
                "Install it with: pip install 'lit-group-rl[reasoning-gym]'"
            )
        if self.task in HASH_SEED:
            raise RecipeError(
                f"data.source.task: {self.task} gives other questions in every process, so a run on it cannot be "
                f"repeated. Choose one of {', '.join(sorted(CHECKED))}"
            )
        if self.task in PAYS_JUNK:
            log.warning("data: the scorer of %s %s: score it with ExactMatch", self.task, PAYS_JUNK[self.task])
        elif self.task not in CHECKED:
            log.warning(
                "data: the task %s has not been checked: its scorer may hang, raise or pay junk. Checked are %s",
                self.task,
                ", ".join(sorted(CHECKED)),
            )

    def _draw(self, purpose: str, count: int, taken: set[str]) -> list[Prompt]:
        """Up to ``count`` questions that differ from each other and from those ``taken``."""
        if count == 0:
            return []
        data = self._dataset(TRIES * count, seed_of("reasoning-gym", self.content_seed, purpose) % 2**31)
        drawn: list[Prompt] = []
        for i in range(TRIES * count):
            entry = data[i]
            text = asked(entry["question"], self.instruction, self.chat)
            if repr(text) in taken:
                continue
            taken.add(repr(text))
            answer = None if entry.get("answer") is None else str(entry["answer"])
            fields = {"task": self.task, "task_config": dict(self.config), "entry": dict(entry)}
            drawn.append(Prompt(text, answer, fields, f"{self.task} {purpose} item {i}"))
            if len(drawn) == count:
                break
        return drawn

    def _dataset(self, size: int, seed: int) -> Any:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS

        if self.task not in DATASETS:
            close = difflib.get_close_matches(self.task, DATASETS, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Checked are {', '.join(sorted(CHECKED))}"
            raise RecipeError(f"data.source.task: reasoning-gym has no task {self.task!r}. {hint}")
        try:
            return reasoning_gym.create_dataset(self.task, size=size, seed=seed, **self.config)
        except (TypeError, ValueError, AssertionError) as error:
            known = sorted(set(DATASETS[self.task][1].__dataclass_fields__) - {"size", "seed"})
            raise RecipeError(
                f"data.source.config: {self.task} does not take {self.config}: {error}. It has {', '.join(known)}"
            ) from None
