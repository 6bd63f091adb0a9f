import io
import sys

import pytest
from lightning.pytorch import Trainer

from lit_group_rl.callbacks.console import CLEAR
from lit_group_rl.callbacks.progress import Progress, duration, heldout_summary, train_summary

TRAIN = {
    "reward/mean": 0.634,
    "reward/accuracy": 0.58,
    "group/zero_std_frac": 0.12,
    "length/mean": 4.06,
    "time/step": 1.93,
    "loss/policy": 0.0001,
}


def test_the_line_of_a_step():
    assert train_summary(TRAIN) == "reward 0.63 · solved 58% · dead 12% · len 4.1 · 1.9 s/step"


def test_numbers_that_were_not_logged_are_left_out():
    assert train_summary({"reward/mean": 0.5, "time/step": 0.25}) == "reward 0.50 · 0.25 s/step"
    assert train_summary({"eval/heldout/accuracy": 0.5, "time/step": 9.0}) == ""
    assert train_summary({"reward/mean": float("nan")}) == "reward nan"


def test_the_loss_is_never_shown():
    assert "loss" not in train_summary(TRAIN)
    assert "0.0001" not in train_summary(TRAIN)


def test_the_held_out_line_takes_the_largest_k():
    metrics = {"eval/heldout/accuracy": 0.41, "eval/heldout/pass_at_2": 0.5, "eval/heldout/pass_at_16": 0.625}
    assert heldout_summary(metrics) == "held-out 41.0% · pass@16 62.5%"
    assert heldout_summary({"reward/mean": 1.0}) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (171, "2 min 51 s"),
        (3600, "1 h 00 min"),
        (11040, "3 h 04 min"),
    ],
)
def test_durations(seconds, text):
    # 2 * 60 + 51 = 171; 3 * 3600 + 4 * 60 = 11040
    assert duration(seconds) == text


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
def test_a_duration_that_is_no_number(seconds):
    assert duration(seconds) == "?"


def test_a_file_gets_about_twenty_lines_and_every_held_out_result(trainer, module, capsys):
    bar = Progress()
    bar.on_metrics(trainer, module, 0, {"eval/heldout/accuracy": 0.203})
    for step in range(1, 101):
        metrics = TRAIN | ({"eval/heldout/accuracy": 0.41} if step % 20 == 0 else {})
        bar.on_metrics(trainer, module, step, metrics)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step   0  held-out 20.3%"
    assert lines[1] == "step   1  reward 0.63 · solved 58% · dead 12% · len 4.1 · 1.9 s/step"
    # 100 / 20 = every 5th step: 20 lines, the first step one more, and 6 evaluations
    assert len(lines) == 21 + 6
    assert lines[-1] == "step 100  held-out 41.0%"
    assert all(CLEAR not in line for line in lines)


def test_the_interval_can_be_set_and_the_last_step_is_shown(trainer, module, capsys):
    module.steps = 7
    bar = Progress(every=3)
    for step in range(1, 8):
        bar.on_metrics(trainer, module, step, TRAIN)
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1", "3", "6", "7"]
    with pytest.raises(ValueError, match=r"Progress\(every=0\): every must be at least 1"):
        Progress(every=0)


def test_a_terminal_gets_one_live_line_and_the_held_out_results(trainer, module, monkeypatch):
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("COLUMNS", "120")
    bar = Progress()
    bar.on_metrics(trainer, module, 1, TRAIN)
    bar.on_metrics(trainer, module, 2, TRAIN | {"eval/heldout/accuracy": 0.41})
    bar.on_train_end(trainer, module)
    body = "reward 0.63 · solved 58% · dead 12% · len 4.1 · 1.9 s/step"
    # 99 and 98 steps of 1.93 s: 191.07 s and 189.14 s
    assert out.getvalue() == (
        f"{CLEAR}step   1/100  {body} · 3 min 11 s left"
        f"{CLEAR}step   2/100  {body} · 3 min 09 s left"
        f"{CLEAR}step   2  held-out 41.0%\n"
        f"{CLEAR}step   2/100  {body}\n"
    )


def test_other_processes_and_a_disabled_bar_are_silent(trainer, module, capsys):
    bar = Progress()
    bar.disable()
    bar.on_metrics(trainer, module, 1, TRAIN)
    bar.enable()
    trainer.is_global_zero = False
    bar.on_metrics(trainer, module, 1, TRAIN)
    assert capsys.readouterr().out == ""


def test_lightning_takes_it_as_its_progress_bar():
    bar = Progress()
    trainer = Trainer(callbacks=[bar], logger=False, enable_checkpointing=False, accelerator="cpu")
    assert trainer.progress_bar_callback is bar
