import json
import math
import os
import warnings

import pytest

from lit_group_rl.callbacks.base import Guard, to_json, write_atomic


def failing():
    raise OSError("No space left on device")


def test_a_guard_tells_the_first_failure_and_the_last():
    guard = Guard(limit=3)
    with pytest.warns(UserWarning, match="metrics.csv could not write .*No space left.*training goes on"):
        assert guard("metrics.csv", failing) is False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard("metrics.csv", failing)
    with pytest.warns(UserWarning, match="not tried again"):
        guard("metrics.csv", failing)
    calls = []
    assert guard("metrics.csv", lambda: calls.append(1)) is False
    assert calls == []


def test_a_guard_forgives_after_a_success_and_keeps_writers_apart():
    guard = Guard(limit=2)
    with pytest.warns(UserWarning, match="a could not write"):
        guard("a", failing)
    assert guard("b", lambda: None)
    assert guard("a", lambda: None)
    with pytest.warns(UserWarning, match="training goes on"):
        guard("a", failing)


def test_a_guard_lets_an_interruption_through():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard()("a", stop)


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_atomic(path, "old")

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_json_is_strict_and_takes_any_text():
    text = to_json({"a": [math.nan, math.inf, 1.5], "b": "\ud800\x1b", "c": {"d": -math.inf}, "e": True})
    assert json.loads(text) == {"a": [None, None, 1.5], "b": "\ud800\x1b", "c": {"d": None}, "e": True}
    text.encode("ascii")
