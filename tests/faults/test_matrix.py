"""Every row of the fault matrix that needs no GPU is provoked: here, or by the test that the row names."""

from __future__ import annotations

import ast
import csv
import json
import math
import re
import signal
import socket
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.specifiers import SpecifierSet

from lit_group_rl import checkpoint
from lit_group_rl.cli.main import main
from lit_group_rl.loss_weights import TruncatedMask
from lit_group_rl.policy import HFPolicy
from lit_group_rl.rewards.base import Reward
from lit_group_rl.surrogates import Clipped
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import LossContext, Recipe
from tests import tiny_runs
from tests.faults import matrix, matrix_files

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lit_group_rl"
ROWS = matrix.rows()
LINES = [(row.number, line, said) for row in ROWS for line, said in row.lines]
NUMBERS = [*map(str, range(1, 13)), "12b", *map(str, range(13, 80))]
"""Of the rows of the reliability plan."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files that rows name, and a finished run."""
    path = tmp_path_factory.mktemp("matrix")
    matrix_files.write(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(signal, "signal", lambda *_: None)
        assert main([*matrix.SMOKE.split(), "--run_name=done", "--steps=1"]) == 0
    return path


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # handlers of one run must not outlive it in this process


def test_every_row_is_there_once() -> None:
    assert [row.number for row in ROWS] == NUMBERS
    for row in ROWS:
        assert row.lines or row.nodes, row.number
        assert row.lines == () or row.kind == "E", row.number


@pytest.mark.parametrize("node", sorted({node for row in ROWS for node in row.nodes}))
def test_the_test_that_a_row_names_is_collected(node: str) -> None:
    file, _, name = node.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert Path(file).name.startswith("test_")
    assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}


@pytest.mark.parametrize(("number", "line", "said"), LINES, ids=[f"{n}: {line[:80]}" for n, line, _ in LINES])
def test_it_is_refused_before_the_first_step(
    number: str, line: str, said: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "ReasoningGym" in line:
        pytest.importorskip("reasoning_gym")
    if ".lora." in line:
        pytest.importorskip("peft")
    before = steps_made(folder)
    began = time.monotonic()
    code = main(line.split())
    took = time.monotonic() - began
    out, err = capsys.readouterr()
    assert code == 2, err
    error = err[err.index("error: ") :]
    assert len(error.splitlines()) <= 6
    assert [word for word in said if word not in error] == [], error
    assert "usage:" not in out + err
    assert "Traceback" not in out + err
    assert steps_made(folder) == before
    assert took < 15


def steps_made(folder: Path) -> list[str]:
    """Checkpoints, and rows of finished RL steps."""
    found = [str(p) for p in folder.glob("**/step_*")]
    for path in sorted(folder.glob("**/metrics.csv")):
        with path.open() as lines:
            found += [f"{path} {row['step']}" for row in csv.DictReader(lines) if row["step"] != "0"]
    return sorted(found)


def last_run(folder: Path, name: str) -> Path:
    return sorted((folder / "runs" / name).iterdir())[-1]


def metrics(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as lines:
        return [row for row in csv.DictReader(lines) if row["step"] != "0"]


# ---- what must be survived

WILD = """
import math
from lit_group_rl.rewards.base import Reward
class Wild(Reward):
    range = (0.0, 1.0)
    def score(self, samples):
        odd = {1: KeyError('lost'), 2: math.nan, 3: None, 4: math.inf, 5: 1e38}
        return [odd.get(i, float(i % 2)) for i in range(len(samples))]
"""


def test_a_run_survives_what_it_must(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One run with all of it: odd path, byte order mark, escape codes, equal prompts, fewer prompts than a step, a
    reward that raises, abstains and leaves its range, a failing logger, a clock that goes back, no network."""
    from lightning.pytorch.loggers import TensorBoardLogger

    odd = tmp_path / "räume mit leer 漢字" / ("lang" * 40) / ("x" * 60)
    odd.mkdir(parents=True)
    monkeypatch.chdir(odd)
    monkeypatch.syspath_prepend(str(odd))
    texts = [("1+1=", "\x1b[31m2"), ("1+1=", "2\r"), ("2+1=", "3")]
    lines = "".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in texts)
    (odd / "mine.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (odd / "wild_rewards.py").write_text(WILD)
    clock, began = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: clock() - 100 * (time.monotonic() - began))
    reached: list[object] = []

    def fails(*args: object, **kwargs: object) -> None:
        reached.append(args)
        raise OSError("the network is gone")

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("the writer is gone")

    monkeypatch.setattr(socket.socket, "connect", fails)
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    monkeypatch.setattr(TensorBoardLogger, "log_metrics", broken)
    line = (
        f"{matrix.SMOKE} --run_name=odd --model.heldout=null --model.rewards.exact=wild_rewards.Wild "
        "--data.source=Table --data.source.path=mine.jsonl --data.heldout_size=0"
    )
    with pytest.warns(UserWarning, match="TensorBoardLogger could not write.*the writer is gone"):
        assert main(line.split()) == 0
    out, err = capsys.readouterr()
    made = metrics(last_run(odd, "odd"))
    assert [row["step"] for row in made] == ["1", "2"]
    assert reached == []
    assert "\x1b[31m" not in out + err
    # of 4 prompts x 4 completions one raised; that one, NaN, None and the infinite one have no score
    assert [float(row["reward/error_frac"]) for row in made] == [1 / 16] * 2
    assert [float(row["reward/abstain_frac"]) for row in made] == [4 / 16] * 2
    # left are 0, the clamped 1, and 0, 1 in turns from the 7th to the 16th: 6 of 12
    assert [float(row["reward/mean"]) for row in made] == [6 / 12] * 2


def test_a_policy_without_padding_uses_its_end_token(folder: Path) -> None:
    assert main(f"{matrix.POLICY}./no_pad --run_name=no_pad --steps=1 --model.heldout=null".split()) == 0
    assert float(metrics(last_run(folder, "no_pad"))[0]["length/mean"]) > 1


class OneToken(CharPolicy):
    """Writes its end token first, or never; the layers add nothing, so what comes next does not depend on what was."""

    def __init__(self, ends: bool) -> None:
        super().__init__(hidden_size=32, layers=1, heads=2, context_tokens=32)
        self.ends = ends

    def _model(self) -> Any:
        model = super()._model()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    p.zero_()
            table = model.get_input_embeddings().weight
            table[:] = table[2].clone()  # the first row, of the padding, is 0
            table[self.tokenizer.eos_token_id] *= 50 if self.ends else -50
        return model


class Turns(Reward):
    """0 and 1 in turns, so that there is something to learn from."""

    def score(self, samples: Any) -> list[float]:
        return [float(i % 2) for i in range(len(samples))]


@pytest.mark.parametrize("ends", [True, False], ids=["all empty", "all cut"])
def test_a_run_whose_completions_are_all_alike_goes_on(ends: bool) -> None:
    weigh = {} if ends else {"cut": TruncatedMask()}
    module, log = tiny_runs.fit(policy=OneToken(ends), rewards={"turns": Turns()}, loss_weights=weigh)
    assert (log[2]["length/empty_frac"], log[2]["length/truncated_frac"]) == ((1, 0) if ends else (0, 1))
    assert log[2]["length/mean"] == (1 if ends else 6)
    if ends:
        assert math.isfinite(log[2]["loss/total"])
    else:  # with truncated rows masked nothing is left to learn from: two updates in each of two steps do nothing
        assert (log[2]["optim/skipped_total"], log[2]["optim/update_to_weight"]) == (4, 0)
    assert torch.isfinite(tiny_runs.weights(module)).all()


def test_check_looks_at_the_reward(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "two_rewards.py").write_text(
        "import random\n"
        "def junk(completions): return [1.0 for _ in completions]\n"
        "def moody(completions, answers):\n"
        "    return [(c == a) * (1 + random.random()) for c, a in zip(completions, answers)]\n"
    )
    options = "check grpo scale/smoke --model.rewards.exact=FunctionReward --model.rewards.exact.fn=two_rewards."
    assert main(f"{options}junk".split()) == 2
    out = capsys.readouterr().out
    assert [w for w in ("reward      FAILS", "an empty answer 1.00", "would learn that", "Mend") if w not in out] == []
    assert main(f"{options}moody".split()) == 0
    assert "scored twice gives two scores" in capsys.readouterr().out


def test_a_huge_log_ratio_stays_finite() -> None:
    given: dict[str, Any] = dict.fromkeys(("batch", "logp", "entropy", "counts", "clock", "metrics"))
    ctx = LossContext(**given, log_ratio=torch.tensor([[-1e30, -25.0, 0.0, 1e8, math.inf]]), seed=0)
    # the exponent is held within 20 either way
    torch.testing.assert_close(ctx.ratio, torch.tensor([[math.exp(-20), math.exp(-20), 1, math.exp(20), math.exp(20)]]))


def test_out_of_memory_keeps_the_last_step_and_names_the_setting(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, calls = Clipped.loss, []

    def hungry(self: Clipped, ctx: Any, bounds: Any) -> Any:
        calls.append(ctx.clock.step)
        if ctx.clock.step == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return plain(self, ctx, bounds)

    monkeypatch.setattr(Clipped, "loss", hungry)
    assert main(f"{matrix.SMOKE} --run_name=hungry --model.heldout=null".split()) == 3
    error = capsys.readouterr().err
    for word in (
        "out of memory",
        "stage update",
        "RL step 2",
        "2.00 GiB",
        "Halve model.micro_batch_tokens (now 16384)",
    ):
        assert word in error
    assert calls[-1] == 1
    assert checkpoint.newest(last_run(folder, "hungry")).state["rl_step"] == 1


# ---- security


def test_a_checkpoint_holds_plain_data(folder: Path) -> None:
    found = checkpoint.newest(last_run(folder, "done"))

    def look(value: object) -> None:
        assert isinstance(value, dict | list | tuple | str | int | float | bool | None | torch.Tensor), value
        if isinstance(value, str):
            assert not re.fullmatch(r"\w+(\.\w+)*\.[A-Z]\w*", value), f"{value} names a class"
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
            look(inner)

    look(found.state)


KNOWN_CALLS = {
    ("cli/lightning_cli.py", "eval"): "annotations of our own classes",
    ("rewards/_scorers.py", "pickle.loads"): "requests of the parent process, which wrote them",
}


def test_no_call_runs_what_it_reads() -> None:
    """No eval of text, no unrestricted load, no shell, no code of a model, but for what is named above."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            place = f"{path.relative_to(PACKAGE).as_posix()} line {node.lineno}: {name}"
            assert options.get("shell", "False") == "False", place
            assert options.get("trust_remote_code", "") != "True", place
            if name == "torch.load":
                assert options.get("weights_only") == "True", place
            elif name in ("eval", "exec", "sympify", "parse_expr", "os.system", "os.popen", "yaml.load") or (
                name.startswith(("pickle.", "cloudpickle.", "dill.", "marshal.")) and "load" in name
            ):
                found.add((path.relative_to(PACKAGE).as_posix(), name))
    assert found == set(KNOWN_CALLS)


def test_code_of_a_model_is_off_and_said() -> None:
    assert HFPolicy("x").trust_remote_code is False
    said = [*HFPolicy("x", trust_remote_code=True).checks(Recipe({}, 1, 1, 1))]
    assert [(p.field, p.warning) for p in said] == [("model.policy.trust_remote_code", True)]


def test_the_malicious_releases_cannot_be_chosen() -> None:
    """GHSA-w37p-236h-pfx3: 2.6.2 and 2.6.3 of lightning."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    versions = SpecifierSet(next(w for w in wanted if w.startswith("lightning>")).removeprefix("lightning"))
    assert [v for v in ("2.6.2", "2.6.3", "2.6.6") if v in versions] == ["2.6.6"]
