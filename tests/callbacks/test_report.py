import json
import math

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from lit_group_rl.callbacks.metrics_file import MetricsFile
from lit_group_rl.callbacks.report import RunReport, draw, end_lines, finite_weights, summarize

HISTORY = {
    0: {"eval/heldout/accuracy": 0.203},
    1: {"reward/mean": 0.2, "progress/completions": 256.0, "policy/entropy": 1.0, "group/zero_std_frac": 0.1},
    2: {"reward/mean": 0.4, "progress/completions": 81920.0, "eval/heldout/accuracy": 0.914},
}


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def test_the_summary_takes_first_and_last_held_out_accuracy():
    assert summarize(HISTORY, "grpo", 1, 2, 171.04, True) == {
        "recipe": "grpo",
        "seed": 1,
        "rl_steps": 2,
        "completions": 81920,
        "heldout_start": 0.203,
        "heldout_end": 0.914,
        "seconds": 171.0,
        "finite": True,
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_or_a_weight_that_is_not_finite_is_reported(bad):
    assert summarize(HISTORY | {3: {"optim/grad_norm": bad}}, "grpo", 1, 3, 1.0, True)["finite"] is False
    assert summarize(HISTORY, "grpo", 1, 3, 1.0, False)["finite"] is False
    model = torch.nn.Linear(2, 1)
    assert finite_weights(model)
    with torch.no_grad():
        model.bias[0] = bad
    assert not finite_weights(model)


def test_the_closing_line():
    summary = summarize(HISTORY, "grpo", 1, 2, 171.0, True)
    assert end_lines(summary, 256) == ["held-out 20.3% → 91.4% (greedy, 256 prompts) · 2 min 51 s · 81 920 completions"]
    nothing = summarize({}, "grpo", None, 0, 3.0, True)
    assert end_lines(nothing, None) == ["3 s"]
    broken = summarize({0: {"eval/heldout/accuracy": math.nan}}, "grpo", 1, 0, 3.0, True)
    lines = end_lines(broken, None)
    assert lines[0] == "held-out not a number → not a number (greedy) · 3 s"
    assert "NaN" in lines[1]


def test_a_finished_run_leaves_a_summary_and_a_picture(trainer, module, tmp_path, capsys):
    folder = tmp_path / "runs" / "grpo" / "0001"
    (folder / "checkpoints" / "step_2").mkdir(parents=True)
    trainer.loggers = [TensorBoardLogger(folder, name="", version="")]
    module.rl_step = module.steps = 2
    report = RunReport("grpo", run_dir=folder)
    report.on_train_start(trainer, module)
    for step, metrics in HISTORY.items():
        report.on_metrics(trainer, module, step, metrics)
    report.on_train_end(trainer, module)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["heldout_start"], summary["heldout_end"], summary["completions"]) == (0.203, 0.914, 81920)
    assert png_size(folder / "learning_curve.png") == (960, 720)  # 8 x 6 inches at 120 dots
    out = capsys.readouterr().out
    assert "held-out 20.3% → 91.4% (greedy, 256 prompts)" in out
    assert f"tensorboard --logdir {tmp_path / 'runs'}    first page:" in out
    assert f"lit-group-rl export {folder} my-model" in out
    assert "--resume" not in out


def test_a_stopped_run_says_how_to_go_on(trainer, module, tmp_path, capsys):
    module.rl_step, module.steps = 2, 100
    report = RunReport("grpo", run_dir=tmp_path)
    report.on_train_start(trainer, module)
    report.on_metrics(trainer, module, 1, HISTORY[1])
    report.on_exception(trainer, module, KeyboardInterrupt())
    assert json.loads((tmp_path / "summary.json").read_text())["rl_steps"] == 2
    out = capsys.readouterr().out
    assert " stopped after RL step 2 of 100, before the first checkpoint\n" in out
    assert "--resume" not in out
    (tmp_path / "checkpoints" / "step_2").mkdir(parents=True)
    report.on_exception(trainer, module, KeyboardInterrupt())
    out = capsys.readouterr().out
    assert " stopped after RL step 2 of 100\n" in out
    assert f"lit-group-rl fit --resume={tmp_path}\n" in out


def test_a_run_that_never_began_reports_nothing(trainer, module, tmp_path, capsys):
    RunReport("grpo", run_dir=tmp_path).on_exception(trainer, module, ValueError())
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_resumed_run_reports_on_the_whole(trainer, module, tmp_path):
    log = MetricsFile(tmp_path)
    log.log_metrics({"eval/heldout/accuracy": 0.2, "time/eval": 5.0}, step=0)
    for step in (1, 2, 3):
        log.log_metrics({"reward/mean": 0.5, "time/step": 10.0}, step=step)
    log.log_metrics({"eval/heldout/accuracy": 0.99, "time/eval": 5.0}, step=3)
    report = RunReport("grpo", run_dir=tmp_path)
    module.rl_step, module.steps = 2, 4  # the newest checkpoint is of step 2: what came after is not part of the run
    report.on_train_start(trainer, module)
    for step in (3, 4):
        report.on_metrics(trainer, module, step, {"reward/mean": 0.6, "progress/completions": 64.0 * step})
    module.rl_step = 4
    report.on_train_end(trainer, module)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["heldout_start"], summary["heldout_end"]) == (0.2, 0.2)
    assert summary["completions"] == 256  # 64 * 4
    # 5 + 10 + 10 seconds of the first part, and the moment that this test took
    assert 25.0 <= summary["seconds"] < 30.0


def test_a_new_run_in_an_old_folder_does_not_inherit_its_history(trainer, module, tmp_path):
    MetricsFile(tmp_path).log_metrics({"eval/heldout/accuracy": 0.7}, step=0)
    report = RunReport("grpo", run_dir=tmp_path)
    report.on_train_start(trainer, module)
    report.on_metrics(trainer, module, 0, {"eval/heldout/accuracy": 0.1})
    report.on_train_end(trainer, module)
    assert json.loads((tmp_path / "summary.json").read_text())["heldout_start"] == 0.1


@pytest.mark.parametrize("history", [{}, {0: {"eval/heldout/accuracy": math.nan}}, {1: {"reward/mean": math.inf}}])
def test_a_picture_of_nothing_is_still_a_picture(history, tmp_path):
    draw(history, tmp_path / "curve.png", "title")
    assert png_size(tmp_path / "curve.png") == (960, 720)


def test_other_processes_write_nothing(trainer, module, tmp_path, capsys):
    trainer.is_global_zero = False
    report = RunReport("grpo", run_dir=tmp_path)
    report.on_train_start(trainer, module)
    report.on_metrics(trainer, module, 1, HISTORY[1])
    report.on_train_end(trainer, module)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_read_only_place_does_not_end_the_run(trainer, module, tmp_path):
    (tmp_path / "file").write_text("")
    report = RunReport("grpo", run_dir=tmp_path / "file" / "no")
    report.on_train_start(trainer, module)
    report.on_metrics(trainer, module, 1, HISTORY[1])
    with pytest.warns(UserWarning, match=r"summary.json could not write"):
        report.on_train_end(trainer, module)
