"""Several sources in one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lit_group_rl.data.base import PromptSource
from lit_group_rl.schedules.base import require
from lit_group_rl.types import Prompt, RecipeError


@dataclass(frozen=True)
class Mixture(PromptSource):
    """Prompts of several sources in fixed shares; each prompt carries the name of its source in ``fields['source']``.

    A source too small for its share repeats within a pass over the data.  Training prompts of one source whose text
    another source holds out are left out.
    """

    sources: dict[str, PromptSource]
    """Name -> source."""
    weights: dict[str, float] | None = None
    """Name -> share, in any scale; without it all shares are equal."""

    def __post_init__(self) -> None:
        require(len(self.sources) > 0, self, "sources", "must name at least one source")
        if self.weights is not None:
            require(set(self.weights) == set(self.sources), self, "weights", "must name exactly the sources")
            require(all(w > 0 for w in self.weights.values()), self, "weights", "must all be above 0")

    def load(self, heldout_size: int) -> tuple[list[Prompt], list[Prompt]]:
        weights = self.weights or dict.fromkeys(self.sources, 1.0)
        share = {name: weights[name] / sum(weights.values()) for name in self.sources}
        counts = _apportion(heldout_size, share)
        loaded = {name: source.load(counts[name]) for name, source in self.sources.items()}
        heldout = _distinct([_named(p, name) for name, (_, part) in loaded.items() for p in part])
        taken = {_key(p) for p in heldout}
        train = {name: [p for p in part if _key(p) not in taken] for name, (part, _) in loaded.items()}
        for name, part in train.items():
            if not part:
                raise RecipeError(
                    f"data.source.sources.{name}: all its training prompts are held out by another source. "
                    "Remove it or give it another level"
                )
        total = max(len(part) / share[name] for name, part in train.items())
        sizes = {name: max(1, round(total * share[name])) for name in train}
        repeated = [_named(part[i % len(part)], name) for name, part in train.items() for i in range(sizes[name])]
        return repeated, heldout


def _apportion(total: int, share: dict[str, float]) -> dict[str, int]:
    """Whole numbers that sum to ``total``: the largest remainders are rounded up."""
    counts = {name: int(total * s) for name, s in share.items()}
    by_remainder = sorted(share, key=lambda name: counts[name] - total * share[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _key(prompt: Prompt) -> str:
    return repr(prompt.text)


def _named(prompt: Prompt, name: str) -> Prompt:
    return dataclasses.replace(prompt, fields={**prompt.fields, "source": name})


def _distinct(prompts: Sequence[Prompt]) -> list[Prompt]:
    return list({_key(p): p for p in reversed(prompts)}.values())[::-1]
