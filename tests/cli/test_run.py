"""The commands for real: two RL steps of the default recipe, resumed, evaluated, exported, checked."""

import json
import os
import signal

import pytest
import torch
import yaml
from lightning.pytorch import Callback

from lit_group_rl.cli.main import main

SMOKE = ["fit", "grpo", "scale/smoke", "--trainer.accelerator=cpu"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # handlers of one run must not outlive it in this process
    return tmp_path


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "weights.safetensors")


def test_a_run_leaves_its_folder_and_goes_on_from_it(here, capsys):
    assert main([*SMOKE, "--model.filter=null"]) == 0
    run = here / "runs" / "grpo" / "0001"
    out = capsys.readouterr().out
    assert "run runs/grpo/0001 · seed 1 · watch: tensorboard --logdir runs" in out
    names = {p.name for p in run.iterdir()}
    assert {"config.yaml", "metrics.csv", "checkpoints", "summary.json"} <= names
    assert any(n.startswith("events.out.tfevents") for n in names)
    assert json.loads((run / "summary.json").read_text())["rl_steps"] == 2

    # one run of 3 steps and one of 2 steps resumed to 3 end with the same weights
    assert main([*SMOKE, "--steps=3", "--resume=auto"]) == 0
    assert main([*SMOKE, "--steps=3"]) == 0
    resumed, unbroken = (weights(here / "runs" / "grpo" / n / "checkpoints" / "step_000003") for n in ("0001", "0002"))
    assert resumed.keys() == unbroken.keys()
    assert all(torch.equal(resumed[k], unbroken[k]) for k in resumed)

    # the saved configuration is a recipe: the same run again
    assert main(["fit", str(run / "config.yaml"), "--run_name=again"]) == 0
    assert (here / "runs" / "again" / "0001" / "config.yaml").read_text().replace("again", "null") == (
        run / "config.yaml"
    ).read_text()
    again = weights(here / "runs" / "again" / "0001" / "checkpoints" / "step_000002")
    first = weights(run / "checkpoints" / "step_000002")
    assert all(torch.equal(first[k], again[k]) for k in first)

    capsys.readouterr()
    assert main(["validate", "--resume=runs/grpo/0001"]) == 0
    assert "eval/heldout/accuracy" in capsys.readouterr().out
    assert main(["predict", "--resume=runs/grpo/0001"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert len(rows) == 16  # heldout_size of scale/smoke
    assert all(row.keys() == {"prompt", "completion", "answer"} for row in rows)
    assert main(["export", "runs/grpo/0001", "plain"]) == 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (here / "plain").iterdir()}


class Raises(Callback):
    """Ends the run in the way it is told."""

    how: BaseException = RuntimeError()

    def on_train_batch_end(self, *args, **kwargs):
        raise self.how


class Stopped(RuntimeError):
    exit_code = 3


@pytest.mark.parametrize(("how", "code"), [(KeyboardInterrupt(), 130), (Stopped("the reward is broken"), 3)])
def test_exit_codes_say_how_a_run_ended(here, capsys, monkeypatch, how, code):
    from lit_group_rl import callbacks

    Raises.how = how
    usual = callbacks.default_callbacks
    monkeypatch.setattr(callbacks, "default_callbacks", lambda *a: [*usual(*a), Raises()])
    assert main(SMOKE) == code
    assert ("stopped: the reward is broken" in capsys.readouterr().err) == (code == 3)


def test_sigterm_ends_with_143(here, monkeypatch):
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from lit_group_rl import callbacks

    Raises.how = SIGTERMException()
    usual = callbacks.default_callbacks
    monkeypatch.setattr(callbacks, "default_callbacks", lambda *a: [*usual(*a), Raises()])
    assert main(SMOKE) == 143
    assert (here / "runs" / "grpo" / "0001" / "checkpoints" / "last").read_text().strip() == "step_000001"


def test_a_users_callback_takes_the_place_of_ours(here):
    from lit_group_rl.callbacks import Progress
    from lit_group_rl.cli.compose import compose
    from lit_group_rl.cli.lightning_cli import build

    cli = build(
        compose(["grpo", "--trainer.callbacks=Progress", "--trainer.callbacks.every=7", "--trainer.logger=false"])
    )
    trainer = cli.make_trainer(here, ["unused"], [Progress()])
    assert [c.every for c in trainer.callbacks if isinstance(c, Progress)] == [7]
    assert trainer.loggers == []
    assert trainer.default_root_dir == os.fspath(here)


def test_resolved_configuration_holds_every_option(capsys):
    assert main(["cat", "grpo", "--resolved", "--model.clip_policy=NoClip"]) == 0
    out, err = capsys.readouterr()
    values = yaml.safe_load(out)
    assert values["model"]["clip_policy"]["class_path"] == "lit_group_rl.clip_policies.NoClip"
    assert values["model"]["sampler"]["init_args"]["top_k"] == 0
    assert "model.clip_policy: FixedClip -> NoClip drops" in err


def test_check_tells_that_the_default_recipe_is_ready(capsys):
    assert main(["check", "grpo"]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0] for line in out.splitlines() if line[1:2].strip()}
    assert {"config", "data", "tokenizer", "reward", "first", "plan", "ready."} <= rows
    assert "none shared" in out
    assert "gold 1.00 · junk at most 0.00" in out
    assert "FAILS" not in out


def test_check_finds_a_reward_that_pays_for_silence(here, capsys, monkeypatch):
    (here / "terse.py").write_text(
        "from lit_group_rl.rewards.base import Reward\n"
        "class Terse(Reward):\n"
        "    solved_at = 0.1\n"
        "    def score(self, samples):\n"
        "        return [1 / (1 + len(s.completion)) for s in samples]\n"
    )
    monkeypatch.syspath_prepend(str(here))
    assert main(["check", "grpo", "--model.rewards.exact=terse.Terse"]) == 2
    out = capsys.readouterr().out
    assert "reward      FAILS" in out
    assert "an empty answer 1.00" in out  # 1 / (1 + 0)
    assert "not ready." in out


def test_check_finds_prompts_that_leave_no_room(capsys):
    assert main(["check", "grpo", "--model.sampler.max_new_tokens=100000"]) == 2
    out = capsys.readouterr().out
    assert "data        FAILS" in out
    assert "leave no room for a prompt" in out
