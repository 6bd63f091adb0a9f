"""Mistakes in the use of the command end in one short message and exit code 2; those of a recipe: tests/faults."""

import pytest

from lit_group_rl.cli.main import main

MISTAKES = [
    ("fit", ["recipe: none is given", "lit-group-rl fit grpo"]),
    ("fit scale/smoke", ["model.sampler", "names no class", "smoke.yaml line", "Put a recipe first"]),
    ("fit grpo fsdp.yaml", ["trainer.strategy", "fsdp.yaml line 2", "fsdp2"]),
    ("fit grpo --trainer.strategy=fsdp", ["trainer.strategy", "command line", "fsdp2"]),
    ("fit grpo --trainer.max_epochs=1", ["trainer.max_epochs", "Set steps"]),
    ("fit grpo --trainer.val_check_interval=1", ["model.heldout.every"]),
    ("fit grpo --model.steps=1", ["model.steps", "Set the top-level steps"]),
    ("fit grpo --model.policy=null", ["model.policy", "missing"]),
    ("fit grpo --trainer.devices=foo", ["trainer", "devices"]),
    ("export runs/none out", ["export", "runs/none does not exist"]),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "fsdp.yaml").write_text("trainer:\n  strategy: fsdp\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("line", "said"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_in_short(folder, capsys, line, said):
    code = main(line.split())
    out, err = capsys.readouterr()
    assert code == 2, err
    error = err[err.index("error: ") :]
    assert len(error.splitlines()) <= 6
    assert [word for word in said if word not in error] == []
    assert "usage:" not in out + err
    assert "Traceback" not in err
    assert not (folder / "runs").exists()


def test_a_bug_keeps_its_traceback(folder):
    # not the user's mistake in the recipe: the constructor itself breaks
    (folder / "broken.py").write_text(
        "from lit_group_rl.advantages.base import AdvantageEstimator\n"
        "class Broken(AdvantageEstimator):\n"
        "    def __init__(self) -> None:\n        self.x = {}['nothing']\n"
        "    def estimate(self, batch): ...\n"
    )
    with pytest.raises(KeyError, match="nothing"):
        main(["fit", "grpo", "--model.advantage=broken.Broken"])
