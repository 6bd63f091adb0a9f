"""The short form of ``python -m tests.faults.numbers``: one place of each kind that has broken a run once, and more."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.faults.numbers import Place, one

PLACES = [
    (Place("weight", 3, math.inf, False, 0.35), "finished"),
    (Place("optimizer", 3, -math.inf, False, 0.2), "finished"),
    (Place("weight", 3, math.nan, True, 0.1), "stopped: NumbersBroken"),
    (Place("logp", 2, math.nan, False, 0.5), "finished"),
    (Place("loss", 4, math.inf, True, 0.9), "stopped: NumbersBroken"),
    (Place("critic", 2, math.nan, False, 0.5), "finished"),
]


@pytest.mark.parametrize(("place", "ending"), PLACES, ids=[f"{p.kind} {p.value}" for p, _ in PLACES])
def test_no_checkpoint_holds_it_and_the_end_is_explained(place: Place, ending: str, tmp_path: Path) -> None:
    found, kept, bad = one(place, tmp_path)
    assert found == ending
    assert kept > 0
    assert bad == 0
