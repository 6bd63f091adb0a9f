"""One and two processes train the same: prompts, completions, rewards, every logged number, weights.

All that is asked of a strategy is asked of one launch, since two imports of torch are most of its time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed import scenarios

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("distributed")]

ROOT = Path(__file__).parents[2]
OWN = ("time/", "perf/")
"""Metrics that are each run's own."""
COMPARED = (
    *(
        "loss/kl",
        "loss/total",
        "loss/policy",
        "loss/critic",
        "loss/evaluator",
        "optim/grad_norm",
        "optim/update_to_weight",
    ),
    *("reward/mean", "advantage/std", "group/used_frac", "critic/explained_variance", "eval/heldout/length"),
)


def launch(strategy: str, folder: Path, seconds: int = 400) -> None:
    """Both processes in a session of their own; a hung one ignores SIGTERM, so the whole group is killed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(scenarios.__file__)), strategy, str(folder)]
    out = [(folder / f"rank{rank}.txt").open("w+") for rank in range(2)]
    processes = [
        subprocess.Popen(
            command, env=env | {"LOCAL_RANK": str(rank)}, stdout=out[rank], stderr=out[rank], start_new_session=True
        )
        for rank in range(2)
    ]
    try:
        codes = [p.wait(timeout=seconds) for p in processes]
    finally:
        for p in processes:
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
    assert codes == [0, 0], "\n".join(f.read_text()[-3000:] for f in sorted(folder.glob("rank*.txt")))


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Every scenario on one process."""
    return {name: scenario({}) for name, scenario in scenarios.SCENARIOS.items()}


@pytest.fixture(scope="module")
def launched() -> dict[str, tuple[Path, dict[str, Any]]]:
    """By strategy; a parametrised fixture would be made anew where a runner mixes the order of the tests."""
    return {}


@pytest.fixture(params=["ddp", "fsdp2"])
def together(
    request: pytest.FixtureRequest,
    launched: dict[str, tuple[Path, dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, Any]]:
    """Every scenario on two processes under a strategy."""
    if request.param not in launched:
        folder = tmp_path_factory.mktemp(request.param)
        scenarios.interrupted(folder / "killed_on_one", {})
        launch(request.param, folder)
        launched[request.param] = folder, torch.load(folder / "results.pt", weights_only=True)
    return launched[request.param]


def assert_same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert [r["prompts"] for r in one["rows"]] == [r["prompts"] for r in two["rows"]]
    assert one["rows"][0]["completions"] == two["rows"][0]["completions"]
    assert one["rows"][0]["scores"] == two["rows"][0]["scores"]
    assert one["weights"].keys() == two["weights"].keys()
    for name, expected in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], expected, atol=1e-5, rtol=0, msg=lambda m: f"{name}: {m}")  # noqa: B023
    assert one["metrics"].keys() == two["metrics"].keys()
    for step, expected in one["metrics"].items():
        found = two["metrics"][step]
        assert expected.keys() == found.keys(), step
        for tag in COMPARED:
            if tag in expected:
                assert found[tag] == pytest.approx(expected[tag], abs=1e-4, rel=1e-3, nan_ok=True), (step, tag)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_two_processes_train_as_one(name: str, alone: dict[str, Any], together: tuple[Path, dict[str, Any]]) -> None:
    assert_same(alone[name], together[1][name])


def test_pieces_change_nothing(alone: dict[str, Any], together: tuple[Path, dict[str, Any]]) -> None:
    assert_same(alone["kl"], together[1]["kl in small pieces"])


def test_a_run_on_two_goes_on_bit_identically(together: tuple[Path, dict[str, Any]]) -> None:
    _, results = together
    for name, expected in results["kl"]["weights"].items():
        assert torch.equal(results["resumed on two"]["weights"][name], expected), name
    for step in (4, 5):
        whole, rest = (
            {k: v for k, v in results[r]["metrics"][step].items() if not k.startswith(OWN)}
            for r in ("kl", "resumed on two")
        )
        assert whole == rest


def test_runs_move_between_one_process_and_two(alone: dict[str, Any], together: tuple[Path, dict[str, Any]]) -> None:
    folder, results = together
    from_two = scenarios.resumed(folder / "killed_on_two", {})
    for moved in (from_two, results["from one to two"]):
        assert [r["prompts"] for r in moved["rows"]] == [r["prompts"] for r in alone["kl"]["rows"][3:]]
        for name, expected in alone["kl"]["weights"].items():
            torch.testing.assert_close(moved["weights"][name], expected, atol=1e-5, rtol=0)
