"""The short form of ``python -m tests.faults.bad_rewards``."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults import bad_rewards


@pytest.mark.slow
def test_failures_are_counted_to_the_unit_over_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    run = bad_rewards.one(tmp_path, "wild", 1, 4, 2.0)
    assert run["code"] == 0
    assert bad_rewards.wrong_counts(run) == []
    # 4 steps x 256 completions: each of the frequent kinds has come up
    assert sum(run["kinds"].values()) == 1024
    assert all(run["kinds"].get(kind, 0) > 0 for kind in ("raise", "hang", "nan")), run["kinds"]
