"""User code of the fault runs: a reward that is right, but fails in every way on completions chosen by their hash."""

from __future__ import annotations

import hashlib
import math
import time

PER_THOUSAND = {"raise": 10, "hang": 10, "nan": 10, "inf": 1}


def kind(prompt: str, completion: str) -> str:
    """What happens to this completion of this prompt: one of PER_THOUSAND, or 'fine'."""
    place = int.from_bytes(hashlib.sha256(f"{prompt}|{completion}".encode()).digest()[:8], "big") % 1000
    for name, share in PER_THOUSAND.items():
        place -= share
        if place < 0:
            return name
    return "fine"


def right(completions: list[str], answers: list[str]) -> list[float]:
    """1 for the answer, 0 for anything else."""
    return [float(c == a) for c, a in zip(completions, answers, strict=True)]


def wild(prompts: list[str], completions: list[str], answers: list[str]) -> list[float]:
    """The same, with 1 % raising, 1 % hanging, 1 % NaN and 0.1 % infinite."""
    scores = []
    for prompt, completion, score in zip(prompts, completions, right(completions, answers), strict=True):
        what = kind(prompt, completion)
        if what == "raise":
            raise KeyError(completion)
        if what == "hang":
            time.sleep(3600)
        scores.append({"nan": math.nan, "inf": math.inf}.get(what, score))
    return scores
