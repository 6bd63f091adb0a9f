"""Fixtures of tests that start from a finished run."""

import pytest

from tests.made_runs import make_run


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_run(root / "runs" / "grpo" / "0001")
    return root


@pytest.fixture
def beside_a_run(made, monkeypatch):
    """The working folder holds runs/grpo/0001."""
    monkeypatch.chdir(made)
    return made
