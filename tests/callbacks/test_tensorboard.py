import os
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from lit_group_rl import tags
from lit_group_rl.callbacks.tensorboard import TensorBoardPage, first_page, run_card


def events_of(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def layout_of(folder):
    # torch writes one layout per call; the newest counts
    proto = events_of(folder).Tensors("custom_scalars__config__")[-1].tensor_proto
    layout = layout_pb2.Layout()
    layout.ParseFromString(proto.string_val[0])
    return {c.title: {chart.title: list(chart.multiline.tag) for chart in c.chart} for c in layout.category}


@pytest.fixture
def logger(tmp_path, trainer):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    trainer.loggers = [logger]
    return logger


def test_the_first_page_has_only_charts_with_numbers():
    page = first_page({"reward/mean", "eval/heldout/pass_at_2", "eval/heldout/pass_at_8", "mine/number"})
    assert page == {
        "1 Is it learning?": {
            "reward": ["Multiline", ["^reward/mean$"]],
            "held-out, any of K samples": ["Multiline", ["^eval/heldout/pass_at_8$"]],
        }
    }


def test_the_layout_is_written_after_the_first_step_and_again_when_a_chart_is_new(trainer, module, logger, tmp_path):
    page = TensorBoardPage(run_dir=tmp_path)
    page.on_metrics(trainer, module, 0, {"eval/heldout/accuracy": 0.2})
    assert "custom_scalars__config__" not in events_of(tmp_path).Tags()["tensors"]
    for step in (1, 2, 3):
        page.on_metrics(trainer, module, step, {"reward/mean": 0.5})
    page.on_metrics(trainer, module, 4, {"critic/explained_variance": 0.1})
    assert layout_of(tmp_path) == {
        "1 Is it learning?": {
            "reward": ["^reward/mean$"],
            "solved, held-out prompts (greedy)": ["^eval/heldout/accuracy$"],
        },
        "3 Is it stable?": {"critic: explained variance": ["^critic/explained_variance$"]},
    }


def test_numbers_are_on_disk_after_every_step(trainer, module, logger, tmp_path):
    page = TensorBoardPage(run_dir=tmp_path)
    logger.log_metrics({"reward/mean": 0.5}, step=1)
    page.on_metrics(trainer, module, 1, {"reward/mean": 0.5})
    assert [e.value for e in events_of(tmp_path).Scalars("reward/mean")] == [0.5]


def test_the_cards_say_what_runs_and_what_the_numbers_mean(trainer, module, logger, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 1\nmodel: {policy: TinyPolicy}\n")
    TensorBoardPage("grpo", run_dir=tmp_path).on_train_start(trainer, module)
    logger.finalize("success")
    events = events_of(tmp_path)
    text = {t: events.Tensors(t)[0].tensor_proto.string_val[0].decode() for t in events.Tags()["tensors"]}
    assert text["setup/config/text_summary"] == "```yaml\nseed: 1\nmodel: {policy: TinyPolicy}\n\n```"
    assert text["setup/card/text_summary"].splitlines()[:3] == ["| recipe | grpo |", "|---|---|", "| seed | 1 |"]
    assert all(tag.definition in text["setup/metrics/text_summary"] for tag in tags.TABLE)


def test_a_run_resumed_with_other_options_shows_those(trainer, module, logger, tmp_path):
    for name, text, modified in (("config.yaml", "steps: 4", 1000), ("config.2.yaml", "steps: 8", 2000)):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (modified, modified))
    TensorBoardPage(run_dir=tmp_path).on_train_start(trainer, module)
    logger.finalize("success")
    shown = events_of(tmp_path).Tensors("setup/config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert shown == "```yaml\nsteps: 8\n```"


def test_the_run_card_names_parts_estimators_and_versions(trainer, module):
    from lit_group_rl.aux_losses.kl import KL
    from lit_group_rl.types import Recipe

    module.describe = lambda prompts: Recipe({"aux_losses": {"kl": KL(estimator="k2")}}, prompts, 8, 4)
    card = run_card(trainer, module, "a|b")
    assert "| recipe | a&#124;b |" in card
    # 32 * 8 = 256
    assert "| completions per RL step | 32 prompts x 8 = 256 |" in card
    assert "| updates per RL step | 4 |" in card
    assert "| estimator of aux&#95;losses.kl | k2 |" in card
    assert f"| torch | {torch.__version__} |" in card


def test_a_resumed_run_hides_the_points_that_it_makes_anew(trainer, module, tmp_path):
    def session(steps, value):
        logger = TensorBoardLogger(tmp_path, name="", version="")
        trainer.loggers = [logger]
        TensorBoardPage(run_dir=tmp_path).on_train_start(trainer, module)
        for step in steps:
            logger.log_metrics({"reward/mean": value}, step=step)
        logger.finalize("success")

    session(range(1, 6), 1.0)
    module.rl_step = 3
    session(range(4, 7), 2.0)
    points = [(e.step, e.value) for e in events_of(tmp_path).Scalars("reward/mean")]
    assert points == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]


def test_a_writer_that_fails_does_not_end_the_run(trainer, module):
    class Broken(TensorBoardLogger):
        def __init__(self):
            pass

        @property
        def experiment(self):
            def fail(*args):
                raise OSError("disk full")

            return SimpleNamespace(add_text=fail, add_custom_scalars=fail, flush=fail)

    trainer.loggers = [Broken()]
    page = TensorBoardPage()
    with pytest.warns(UserWarning, match="TensorBoard could not write .OSError: disk full.; training goes on"):
        page.on_train_start(trainer, module)
    page.on_metrics(trainer, module, 1, {"reward/mean": 0.5})
