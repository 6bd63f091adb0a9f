"""Each rule speaks just past its threshold and is silent just before it; the coach speaks once, and stops if asked."""

import json
import re
import signal
import time

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lit_group_rl.callbacks.coach import Coach, read_coach
from lit_group_rl.callbacks.coach_history import HELDOUT, Facts, History, rises
from lit_group_rl.callbacks.coach_rules import RULES, distance_to_start, markdown
from lit_group_rl.tags import definition

LOOK = {rule.id: rule.look for rule in RULES}
FACTS = Facts(
    max_new_tokens=8,
    group_size=8,
    level=2,
    learning_rate=1e-4,
    updates=2,
    temperature=1.0,
    advantage="GroupRelative",
    aggregator="SequenceMean",
    clip_high=0.2,
    kl_terms=("kl",),
    extracts=("exact.extract",),
)
"""Those of recipe grpo."""


def history(steps, start=1, **tags):
    """RL steps from ``start`` on; each tag ('a__b' for a/b) a constant, or a list with a value per step."""
    out = History()
    for i in range(steps):
        named = {tag.replace("__", "/"): value for tag, value in tags.items()}
        out.add(start + i, {tag: value[i] if isinstance(value, list) else value for tag, value in named.items()})
    return out


def dead(share, wrong, right, steps=20, size=8):
    return history(
        steps, group__size=size, group__zero_std_frac=share, group__all_min_frac=wrong, group__all_max_frac=right
    )


def unsolved(steps=5, rewards=0.1, solved=0.0, zero=1.0):
    return history(steps, reward__mean=rewards, reward__accuracy=solved, group__zero_std_frac=zero)


def still(steps=50, kl=9e-5, norm=0.1, reward=0.3, solved=0.3):
    return history(steps, optim__grad_norm=norm, policy__kl_ref=kl, reward__mean=reward, reward__accuracy=solved)


def bound(largest):
    return history(50, optim__grad_norm=0.1, policy__log_ratio_abs_max=largest, reward__mean=0.3, reward__accuracy=0.3)


def entropy(values, solved=0.5):
    return history(len(values), policy__entropy=values, reward__accuracy=solved)


def lengths(first, then, steps, reward=0.3):
    return history(steps + 1, length__mean=[first] + [then] * steps, reward__mean=reward)


def evaluated(held, before, after):
    out = History()
    for step in range(61):
        reward = {"reward/mean": before if step <= 20 else after} if step else {}
        out.add(step, reward | ({HELDOUT: held[step // 20]} if step % 20 == 0 else {}))
    return out


SPEAKS = [
    ("R1", unsolved(), ["more than 0.1", "--data.source.level=1"]),
    ("R2", dead(0.81, 0.5, 0.31), ["81%", "50% all wrong", "--model.sampler.group_size=16"]),
    ("R3", dead(0.81, 0.3, 0.51), ["81%", "51% all right", "--data.source.level=3"]),
    ("R4", history(1, length__truncated_frac=0.51, length__p95=8), ["51%", "8 tokens", "max_new_tokens=16"]),
    ("R5", history(20, reward__answer_missed_frac=0.51, reward__accuracy=0.49), ["51%", "49%", "exact.extract"]),
    ("R6", still(), ["9e-05", "--model.learning_rate=0.001"]),
    # 2 (50 x 1.4e-4)^2 = 9.8e-5
    ("R6", bound(1.4e-4), ["0.0001 nats"]),
    ("R7", entropy([1.0] + [0.099] * 20, solved=0.89), ["1 to 0.099", "89% solved", "clip_policy.high=0.28"]),
    # 1.42 + 0.01 * mean(0..19) = 1.515
    ("R8", entropy([1.0] + [1.42 + 0.01 * i for i in range(20)]), ["1 to 1.5", "learning_rate=5e-05"]),
    ("R9", lengths(10, 20.1, 50), ["grew from 10.0 to 20.1", "--model.shapers.overlong=SoftOverlong"]),
    ("R9", lengths(10, 2.4, 20), ["fell from 10.0 to 2.4", "--model.aggregator=TokenMean"]),
    ("R10", history(1, policy__log_ratio_abs_max=5.1), ["reached 5.1", "--model.minibatches=1"]),
    ("R10", history(20, policy__clip_frac=0.31), ["31% of the tokens"]),
    ("R11", history(20, reward_variance__a=0.96, reward_variance__b=0.04), ["96%", "'a'", "'b' cannot be heard"]),
    ("R12", evaluated([0.5, 0.4, 0.3, 0.2], 0.3, 0.5), ["50.0% to 20.0%", "0.30 to 0.50", "aux_losses.kl.coef"]),
    ("R13", history(20, time__reward=0.41, time__step=1.0), ["0.41 of 1 s"]),
    ("R14", history(20, critic__explained_variance=-0.01), ["-0.01", "CriticWarmUp"]),
]
SILENT = [
    ("R1", unsolved(steps=4)),
    ("R1", unsolved(rewards=[0.1, 0.1, 0.2, 0.1, 0.1])),
    ("R1", unsolved(zero=[1, 1, 1, 0.99, 1])),
    ("R1", unsolved(steps=6, solved=[0, 0, 0, 0, 0, 0.01])),
    ("R2", dead(0.8, 0.5, 0.3)),
    ("R2", dead(0.81, 0.5, 0.31, steps=19)),
    ("R2", dead(1.0, 0.6, 0.4, size=1)),
    ("R2", dead(0.81, 0.3, 0.51)),
    ("R3", dead(0.8, 0.3, 0.5)),
    ("R3", dead(0.81, 0.5, 0.31)),
    ("R3", dead(1.0, 0.4, 0.6, size=1)),
    ("R4", history(1, length__truncated_frac=0.5)),
    ("R5", history(20, reward__answer_missed_frac=0.5, reward__accuracy=0.49)),
    ("R5", history(20, reward__answer_missed_frac=0.51, reward__accuracy=0.5)),
    ("R6", still(kl=1.1e-4)),
    ("R6", still(steps=49)),
    ("R6", still(norm=0.0)),
    ("R6", still(solved=0.9)),
    ("R6", still(reward=[0.3 + 0.01 * i for i in range(50)])),
    ("R6", still(reward=[0.8 - 0.01 * i for i in range(50)])),
    # 2 (50 x 1.42e-4)^2 = 1.008e-4
    ("R6", bound(1.42e-4)),
    ("R7", entropy([1.0] + [0.101] * 20)),
    ("R7", entropy([1.0] + [0.099] * 20, solved=0.9)),
    # 1.40 + 0.01 * mean(0..19) = 1.495
    ("R8", entropy([1.0] + [1.40 + 0.01 * i for i in range(20)])),
    ("R8", entropy([1.0] + [1.6] * 20)),
    ("R9", lengths(10, 19.9, 50)),
    ("R9", lengths(10, 20.1, 50, reward=[0.01 * i for i in range(51)])),
    ("R9", lengths(10, 2.6, 50)),
    ("R10", history(1, policy__log_ratio_abs_max=5.0)),
    ("R10", history(21, policy__log_ratio_abs_max=[5.1] + [0.1] * 20)),
    ("R10", history(20, policy__clip_frac=0.3)),
    ("R11", history(20, reward_variance__a=0.95, reward_variance__b=0.05)),
    ("R11", history(20, reward_variance__a=1.0)),
    ("R11", history(20, reward_variance__a=0.0, reward_variance__b=0.0)),
    ("R12", evaluated([0.5, 0.4, 0.4, 0.3], 0.3, 0.5)),
    ("R12", evaluated([0.5, 0.4, 0.3, 0.2], 0.5, 0.5)),
    ("R13", history(20, time__reward=0.4, time__step=1.0)),
    ("R14", history(20, critic__explained_variance=[-0.01] * 19 + [0.0])),
    ("R14", history(19, critic__explained_variance=-0.01)),
]


@pytest.mark.parametrize(("rule", "past", "words"), SPEAKS, ids=[f"{r}-{i}" for i, (r, *_) in enumerate(SPEAKS)])
def test_a_rule_speaks_just_past_its_threshold_with_numbers_and_options(rule, past, words):
    said = LOOK[rule](past, FACTS)
    assert said is not None
    assert [word for word in words if word not in said] == [], said
    assert "\n" not in said


@pytest.mark.parametrize(("rule", "before"), SILENT, ids=[f"{r}-{i}" for i, (r, _) in enumerate(SILENT)])
def test_a_rule_is_silent_just_before_its_threshold(rule, before):
    assert LOOK[rule](before, FACTS) is None


def test_every_rule_is_provoked_here_and_none_speaks_without_numbers():
    assert {rule for rule, *_ in SPEAKS} == {rule for rule, _ in SILENT} == set(LOOK)
    assert list(LOOK) == [f"R{i}" for i in range(1, 15)]
    assert [rule for rule, look in LOOK.items() if look(History(), Facts())] == []


def test_a_slow_function_is_to_be_called_one_by_one_before_it_gets_more_processes():
    slow = history(20, time__reward=0.5, time__step=1.0)
    assert LOOK["R13"](slow, Facts(workers={"mine": 0})).endswith(
        "--model.rewards.mine.one_by_one=true if it compares no completions"
    )
    assert LOOK["R13"](slow, Facts(workers={"mine": 4})).endswith("--model.rewards.mine.workers=8")


def test_rules_that_a_recipe_makes_meaningless_are_silent():
    clipped = history(20, policy__clip_frac=0.9)
    assert LOOK["R10"](clipped, Facts(sequence_ratio=True)) is None
    uneven = history(20, reward_variance__a=0.99, reward_variance__b=0.01)
    assert LOOK["R11"](uneven, Facts(advantage="GDPO")) is None


@pytest.mark.parametrize("facts", [FACTS, Facts()], ids=["grpo", "unknown"])
def test_the_options_that_are_named_exist(facts):
    from lit_group_rl.cli.compose import compose
    from lit_group_rl.cli.precheck import check_names

    named = []
    for rule, past, _ in SPEAKS:
        for option in re.findall(r"--[\w.]+=[\w.+-]+", LOOK[rule](past, facts)):
            option = option.rstrip(".,")
            named.append(option)
            check_names(compose(["ppo" if "critic" in option or "Critic" in option else "grpo", option]))
    assert len(named) >= (15 if facts is FACTS else 1)


def test_a_rise_is_more_than_two_standard_errors():
    # variances 0.25 and 0.25 of 4 values each: error sqrt(0.0625 + 0.0625) = 0.354, so 0.71 is the edge
    low, high = [0.0, 1.0, 0.0, 1.0], [0.7, 1.7, 0.7, 1.7]
    assert not rises(low, high)
    assert rises(low, [v + 0.02 for v in high])
    assert not rises(high, low)


def test_numbers_that_are_not_finite_are_left_out():
    assert history(3, policy__entropy=[1.0, float("nan"), float("inf")]).first("policy/entropy", 5) == [1.0]
    assert distance_to_start(History()) is None


def test_what_rules_read_is_logged():
    from lit_group_rl.callbacks.coach_history import READ, VARIANCE

    assert [tag for tag in (*READ, f"{VARIANCE}exact") if definition(tag) is None] == []


# ---- the callback


CUT = {"length/truncated_frac": 1.0, "length/p95": 8.0}
WHOLE = {"length/truncated_frac": 0.0, "length/p95": 3.0}


def feed(coach, trainer, module, steps, start=1):
    for i, metrics in enumerate(steps):
        module.rl_step = start + i
        coach.on_metrics(trainer, module, start + i, metrics)


def test_a_rule_speaks_once_and_again_only_after_it_was_gone_and_a_pause(trainer, module, tmp_path, capsys):
    coach = Coach(run_dir=tmp_path)
    # the mean of the last 20 falls to 0.5 at step 40 + 10
    feed(coach, trainer, module, [CUT] * 40 + [WHOLE] * 20 + [CUT] * 60)
    said = read_coach(tmp_path)
    # gone at step 50, back when 11 of the last 20 are cut, at step 71: more than 50 steps after the first
    assert [(line["step"], line["rule"]) for line in said] == [(1, "R4"), (71, "R4")]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("coach")]
    assert len(lines) == 2
    assert lines[0].startswith("coach R4  100% of the answers are cut off")


def test_a_rule_that_comes_back_within_the_pause_waits_for_its_end(trainer, module, tmp_path):
    feed(Coach(run_dir=tmp_path), trainer, module, [CUT] * 2 + [WHOLE] * 20 + [CUT] * 60)
    # back at step 33 (11 of 20 cut), but speaks at 1 + 50
    assert [line["step"] for line in read_coach(tmp_path)] == [1, 51]


def test_the_line_is_a_text_of_tensorboard(trainer, module, tmp_path):
    trainer.loggers = [TensorBoardLogger(str(tmp_path), name="", version="")]
    feed(Coach(run_dir=tmp_path), trainer, module, [CUT])
    trainer.loggers[0].experiment.flush()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    text = events.Tensors("coach/R4/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.startswith("**R4** 100% of the answers")


def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(trainer, module, tmp_path):
    steps = [CUT] * 5 + [WHOLE] * 40 + [CUT] * 30
    whole = Coach(run_dir=tmp_path / "whole")
    feed(whole, trainer, module, steps)

    folder = tmp_path / "cut"
    first = Coach(run_dir=folder)
    feed(first, trainer, module, steps[:60])
    state = None
    again = Coach(run_dir=folder)
    probe = Coach(run_dir=tmp_path / "probe")
    feed(probe, trainer, module, steps[:50])
    state = probe.state_dict()  # of a checkpoint at step 50; the file already tells of step 56
    rows = "".join(f"{i + 1},{m['length/truncated_frac']},{m['length/p95']}\n" for i, m in enumerate(steps[:60]))
    (folder / "metrics.csv").write_text("step,length/truncated_frac,length/p95\n" + rows)
    module.rl_step = 50
    again.on_train_start(trainer, module)
    again.load_state_dict(json.loads(json.dumps(state)))
    feed(again, trainer, module, steps[50:], start=51)
    assert read_coach(folder) == read_coach(tmp_path / "whole")
    assert len(read_coach(folder)) == 2


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match=r"stop_on may name R1, R2, .* R14"):
        Coach(stop_on=["R99"])


def test_a_full_disk_costs_no_run(trainer, module, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="coach.jsonl could not write"):
        feed(Coach(run_dir=tmp_path / "file"), trainer, module, [CUT])
    assert "coach R4" in capsys.readouterr().out


def test_it_costs_less_than_a_millisecond_a_step(trainer, module, tmp_path):
    coach = Coach(run_dir=tmp_path)
    metrics = {
        "reward/mean": 0.3, "reward/accuracy": 0.3, "reward/group_std": 0.2, "reward/answer_missed_frac": 0.1,
        "group/size": 8.0, "group/zero_std_frac": 0.3, "group/all_min_frac": 0.2, "group/all_max_frac": 0.1,
        "length/mean": 5.0, "length/p95": 8.0, "length/truncated_frac": 0.1, "policy/entropy": 0.5,
        "policy/kl_ref": 0.1, "policy/log_ratio_abs_max": 0.5, "policy/clip_frac": 0.1, "optim/grad_norm": 1.0,
        "critic/explained_variance": 0.3, "time/step": 1.0, "time/reward": 0.1, HELDOUT: 0.5,
        "reward_variance/a": 0.1, "reward_variance/b": 0.1,
    }  # fmt: skip
    feed(coach, trainer, module, [metrics] * 2000)
    spent = []
    for _ in range(5):
        began = time.process_time()
        feed(coach, trainer, module, [metrics] * 50, start=3000)
        spent.append((time.process_time() - began) / 50)
    assert min(spent) < 1e-3


def test_a_run_says_what_is_wrong_and_ends_where_asked(tmp_path, monkeypatch, capsys):
    from lit_group_rl.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options = ["--model.sampler.max_new_tokens=2", "--trainer.callbacks+=Coach", "--trainer.callbacks.stop_on=[R4]"]
    assert main(["fit", "grpo", "scale/smoke", "--trainer.accelerator=cpu", "--model.heldout=null", *options]) == 3
    out, err = capsys.readouterr()
    assert "coach R4  100% of the answers are cut off" in out
    assert "--model.sampler.max_new_tokens=4" in out
    assert "stopped: coach R4 at RL step 1" in err
    run = tmp_path / "runs" / "grpo" / "0001"
    assert (run / "checkpoints" / "last").read_text().strip() == "step_000001"
    assert [line["rule"] for line in read_coach(run)] == ["R4"]


def test_the_page_shows_the_rules():
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "coach.md").read_text(encoding="utf-8")
    assert markdown() in page, "run: python -m lit_group_rl.callbacks.coach_rules, and put the table into docs/coach.md"
