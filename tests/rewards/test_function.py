import asyncio
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import Tensor

from lit_group_rl.rewards import FunctionReward, RewardBroken, RewardMonitor, _scorers, score_rewards
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import RecipeError, RolloutBatch, Sample

SOURCE = """
import asyncio, os, random, subprocess, sys, time
def by_name(completions, answers): return [float(c == a) for c, a in zip(completions, answers)]
def columns(level, completions): return level
def everything(**given): return [len(given)] * len(given["completions"])
def optional(completions, absent=None): return [0.5 if absent is None else 1.0 for _ in completions]
async def slow(completions):
    await asyncio.sleep(0)
    return [1.0 for _ in completions]
def nothing(): return []
def positional(completions, /): return []
def star(*completions): return []
value = 3

def torch_here(completions): return ["torch" in sys.modules for _ in completions]
def process(completions): return [os.getpid() for _ in completions]
def folder(completions): return [float(os.path.exists("own_rewards.py")) for _ in completions]
def drawn(completions): return [random.random() for _ in completions]
def noisy(completions):
    print("seen by nobody but the user")
    return [1.0 for _ in completions]
def reads(completions): return [len(sys.stdin.read()) for _ in completions]
def attributes(samples): return [s.num_tokens + s.truncated + s.fields["level"] + (s.answer == "a") for s in samples]
def text(completions): return ["0.5" for _ in completions]
def one(completions): return [1.0]
def wild(completions):
    for c in completions:
        if c == "raise": raise KeyError("lost")
        if c == "hang": time.sleep(60)
        if c == "exit": os._exit(7)
        if c == "child": subprocess.run(["sleep", "60", "61.25"])
    return [{"nan": float("nan"), "inf": float("inf"), "none": None}.get(c, 2.0) for c in completions]
def patient(completions):
    time.sleep(0.2 * len(completions))
    return [1.0 for _ in completions]
"""

SAMPLES = [Sample("p", "a", "a", {"level": 1}, 2, False), Sample("p", "b", "a", {"level": 2}, 2, False)]


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "own_rewards.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_rewards", None)


def batch_of(completions) -> RolloutBatch:
    n = len(completions)
    ids, mask = torch.ones(n, 2, dtype=torch.long), torch.ones(n, 2, dtype=torch.bool)
    return RolloutBatch(
        prompt_ids=ids,
        prompt_mask=mask,
        completion_ids=ids,
        completion_mask=mask,
        mask=mask.clone(),
        group_ids=torch.zeros(n, dtype=torch.long),
        row_ids=torch.arange(n),
        truncated=torch.zeros(n, dtype=torch.bool),
        temperature=1.0,
        behaviour_logp=torch.zeros(n, 2),
        samples=[Sample("p", c, "a", {}, 2, False) for c in completions],
        row_role=torch.zeros(n, dtype=torch.long),
    )


def run(reward, completions, step=0, monitor=None) -> tuple[Tensor, dict[str, float]]:
    batch = batch_of(completions)
    score_rewards({"mine": reward}, batch, Clock(step, 10), 1, monitor or RewardMonitor())
    return batch.rewards["mine"], batch.metrics.reduce()


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("by_name", [1, 0]),
        ("columns", [1, 2]),
        ("everything", [5, 5]),  # prompts, completions, answers, samples, level
        ("optional", [0.5, 0.5]),
        ("slow", [1, 1]),
        ("folder", [1, 1]),
        ("attributes", [4, 5]),  # 2 tokens + not truncated + level 1 or 2 + answer a
    ],
)
def test_arguments_by_name(name, scores, in_process):
    assert FunctionReward(f"own_rewards.{name}", in_process=in_process).score(SAMPLES) == scores


@pytest.mark.parametrize("in_process", [False, True])
def test_colon_is_fine_and_async_runs_inside_a_loop(in_process):
    async def outer():
        return FunctionReward("own_rewards:slow", in_process=in_process).score(SAMPLES)

    assert asyncio.run(outer()) == [1, 1]


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("by_name", ["dotted path", "module.function"]),
        ("absent_module.score", ["no module 'absent_module'", "absent_module.py"]),
        ("own_rewards.absent", ["has no 'absent'", "by_name"]),
        ("own_rewards.value", ["not a function", "by_name"]),
        ("own_rewards.nothing", ["takes no arguments", "completions"]),
        ("own_rewards.positional", ["cannot be given by name", "(completions, /)"]),
        ("own_rewards.star", ["cannot be given by name", "(*completions)"]),
    ],
)
def test_bad_functions_are_refused_when_built(path, words, in_process):
    with pytest.raises(RecipeError) as error:
        FunctionReward(path, in_process=in_process)
    for word in words:
        assert word in str(error.value)


def test_a_module_that_cannot_be_imported_is_refused_with_its_place(tmp_path):
    (tmp_path / "broken_rewards.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(RecipeError, match=r"(?s)broken_rewards\.score raised ZeroDivisionError.*line 2"):
        FunctionReward("broken_rewards.score")


def test_a_missing_column_is_refused_by_name():
    with pytest.raises(RecipeError, match=r"asks for level, but it is given prompts, completions, answers, samples"):
        FunctionReward("own_rewards.columns").score([Sample("p", "a", "a", {}, 2, False)])


@pytest.mark.parametrize(
    ("name", "words"),
    [("text", ["value 0", "str", "'0.5'"]), ("one", ["1 values", "2 completions"])],
)
def test_wrong_results_are_refused_by_the_functions_name(name, words):
    with pytest.raises(RecipeError) as error:
        run(FunctionReward(f"own_rewards.{name}"), ["x", "y"])
    for word in [f"own_rewards.{name}", "one per completion", *words]:
        assert word in str(error.value)


def test_what_cannot_be_sent_is_refused():
    samples = [Sample("p", "a", "a", {"level": lambda: 1}, 2, False)]
    with pytest.raises(RecipeError, match=r"cannot be sent.*in_process"):
        FunctionReward("own_rewards.columns").score(samples)


def test_the_process_is_another_one_stays_and_has_no_torch():
    reward = FunctionReward("own_rewards.process")
    pids = {*reward.score(SAMPLES), *reward.score(SAMPLES)}
    assert len(pids) == 1
    assert os.getpid() not in pids
    assert FunctionReward("own_rewards.torch_here").score(SAMPLES) == [0, 0]
    assert FunctionReward("own_rewards.torch_here", in_process=True).score(SAMPLES) == [1, 1]


def test_the_sample_in_the_process_has_the_fields_of_the_real_one():
    assert [f.name for f in dataclasses.fields(_scorers.Sample)] == [f.name for f in dataclasses.fields(Sample)]


def test_printing_and_reading_do_not_disturb_the_answers():
    assert FunctionReward("own_rewards.noisy").score(SAMPLES) == [1, 1]
    assert FunctionReward("own_rewards.reads").score(SAMPLES) == [0, 0]


def test_draws_are_those_of_the_step_whatever_was_drawn_before():
    reward = FunctionReward("own_rewards.drawn")
    first = run(reward, "xy", step=3)[0].tolist()
    other = run(reward, "xy", step=4)[0].tolist()
    assert run(FunctionReward("own_rewards.drawn"), "xy", step=3)[0].tolist() == first
    assert not set(first) & set(other)
    assert len(set(first)) == 2


KINDS = {"raise": 10, "hang": 10, "nan": 10, "inf": 1}
"""Of 1000 completions: 1 %, 1 %, 1 % and 0.1 %."""


def test_failures_of_all_kinds_are_counted_to_the_unit_and_the_run_goes_on():
    completions = ["fine"] * 1000
    for i, kind in enumerate(kind for kind, count in KINDS.items() for _ in range(count)):
        completions[(37 * i) % 1000] = kind
    monitor, reward = RewardMonitor(), FunctionReward("own_rewards.wild", seconds=0.5)
    scores, metrics = run(reward, completions, 0, monitor)
    assert metrics["reward/error_frac"] == 10 / 1000
    assert metrics["reward/timeout_frac"] == 10 / 1000
    # raised, NaN and infinite abstain; a hang scores the minimum
    assert metrics["reward/abstain_frac"] == 21 / 1000
    for completion, score in zip(completions, scores.tolist(), strict=True):
        expected = {"fine": 2.0, "hang": 0.0}.get(completion)
        assert score == expected or (expected is None and score != score), completion
    assert run(reward, ["fine"] * 10, 1, monitor)[0].tolist() == [2.0] * 10


def test_a_hang_costs_its_limit_and_its_process():
    reward = FunctionReward("own_rewards.wild", seconds=0.5)
    reward.score(SAMPLES)
    pid = reward._workers.all[0]._process.pid
    start = time.monotonic()
    scores, metrics = run(reward, ["fine", "hang", "fine"])
    # the call for the batch and the one for the completion, at most a second over their limits
    assert time.monotonic() - start < 2 * (0.5 + 1)
    assert scores.tolist() == [2, 0, 2]
    assert metrics["reward/timeout_frac"] == pytest.approx(1 / 3)
    assert reward._workers.all[0]._process.pid != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_by_one_a_hang_costs_its_limit_once_and_stops_nobody_else():
    reward = FunctionReward("own_rewards.wild", seconds=0.5, one_by_one=True, workers=3)
    assert [reward.early, reward.at_once] == [True, 3]
    reward.score(SAMPLES * 3)  # all processes are up
    start = time.monotonic()
    scores, metrics = run(reward, ["hang", "fine", "hang", "raise", "hang"])
    # three limits side by side and the scoring of the others; one after the other would be 1.5 s
    assert time.monotonic() - start < 1.4
    assert scores.nan_to_num(nan=-1.0).tolist() == [0, 2, 0, -1, 0]
    assert metrics["reward/timeout_frac"] == pytest.approx(3 / 5)
    assert metrics["reward/error_frac"] == pytest.approx(1 / 5)


def test_one_by_one_draws_do_not_depend_on_the_batch():
    reward = FunctionReward("own_rewards.drawn", one_by_one=True, workers=2)
    whole = reward.score(SAMPLES)
    assert whole[0] != whole[1]
    assert [reward.score([s])[0] for s in reversed(SAMPLES)] == whole[::-1]


def test_a_signal_ends_calls_that_go_on_side_by_side():
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    reward = FunctionReward("own_rewards.wild", seconds=60.0, one_by_one=True, workers=2)
    reward.score(SAMPLES)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(Interrupted):
            run(reward, ["hang"] * 4)
        assert time.monotonic() - start < 10
    finally:
        signal.signal(signal.SIGALRM, before)
    assert run(reward, ["fine"] * 2)[0].tolist() == [2, 2]


def test_what_a_hanging_function_started_ends_with_it():
    run(FunctionReward("own_rewards.wild", seconds=0.5), ["child"])
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 60 61.25" not in listed


def test_no_process_outlives_the_run(tmp_path):
    program = (
        "from lit_group_rl.rewards import FunctionReward\n"
        "from lit_group_rl.types import Sample\n"
        "s = [Sample('p', 'a', 'a', dict(), 2, False)]\n"
        "reward = FunctionReward('own_rewards.process')\n"
        "print(int(reward.score(s)[0]))\n"
        "{}\n"
    )
    for ending in ("raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)"):
        done = subprocess.run(
            [sys.executable, "-u", "-c", program.format(ending)], capture_output=True, text=True, cwd=tmp_path
        )
        pid = int(done.stdout)
        time.sleep(0.5)
        # a process that nobody waits for stays listed as Z, which is dead
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        assert state.strip()[:1] in ("", "Z"), ending


def test_a_process_that_dies_fails_only_its_completion():
    scores, metrics = run(FunctionReward("own_rewards.wild"), ["fine", "exit", "fine"])
    assert scores[[0, 2]].tolist() == [2, 2]
    assert scores[1].isnan()
    assert metrics["reward/error_frac"] == pytest.approx(1 / 3)


def test_the_trace_of_the_function_is_shown_once(caplog):
    monitor, reward = RewardMonitor(), FunctionReward("own_rewards.wild")
    with caplog.at_level(logging.ERROR):
        for step in range(2):
            run(reward, ["fine", "raise", "fine"], step, monitor)
    assert caplog.text.count("in wild") == 1
    assert "KeyError: 'lost'" in caplog.text
    assert "completion 'raise'" in caplog.text


@pytest.mark.parametrize("in_process", [False, True])
def test_outcomes_of_an_error(in_process):
    def scored(**options):
        reward = FunctionReward("own_rewards.wild", in_process=in_process, **options)
        return run(reward, ["fine", "raise", "fine"])[0]

    assert scored().isnan().tolist() == [False, True, False]
    assert scored(on_error="minimum").tolist() == [2, 0, 2]
    assert scored(on_error="minimum", range=(-1.0, 3.0)).tolist() == [2, -1, 2]
    with pytest.raises(RewardBroken, match=r"model\.rewards\.mine: .*'lost'.*'raise'.*on_error"):
        scored(on_error="stop")


def test_outcomes_of_a_timeout():
    def scored(**options):
        return run(FunctionReward("own_rewards.wild", seconds=0.3, **options), ["fine", "hang"])[0]

    assert scored(range=(-1.0, 3.0)).tolist() == [2, -1]
    assert scored(on_timeout="abstain").isnan().tolist() == [False, True]
    with pytest.raises(RewardBroken, match=r"model\.rewards\.mine: .*0\.3 s.*'hang'.*on_timeout"):
        scored(on_timeout="stop")


def test_a_function_that_needs_longer_for_a_batch_is_called_for_each_and_says_so(caplog):
    # 4 x 0.2 s is over the limit of 0.5 s, each alone is not
    scores, metrics = run(FunctionReward("own_rewards.patient", seconds=0.5), "wxyz")
    assert scores.tolist() == [1, 1, 1, 1]
    assert metrics["reward/timeout_frac"] == 0
    assert "raise seconds" in caplog.text


def test_the_limit_of_the_batch_ends_the_waiting():
    reward = FunctionReward("own_rewards.wild", seconds=0.4, batch_seconds=1.0)
    start = time.monotonic()
    metrics = run(reward, ["hang"] * 8 + ["fine"] * 2)[1]
    assert time.monotonic() - start < 1 + 1
    assert metrics["reward/timeout_frac"] == 1


def test_a_scorer_that_hangs_for_most_ends_the_run():
    monitor, reward = RewardMonitor(), FunctionReward("own_rewards.wild", seconds=0.05, batch_seconds=0.1)
    for step in range(2):
        run(reward, ["hang", "hang"], step, monitor)
    with pytest.raises(RewardBroken, match=r"failed on 2 of 2.*ScorerTimeout"):
        run(reward, ["hang", "hang"], 2, monitor)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seconds": 0.0}, "seconds"),
        ({"batch_seconds": -1.0}, "batch_seconds"),
        ({"range": (1.0, 0.0)}, "range"),
        ({"workers": 2}, "workers"),
        ({"workers": 0}, "workers"),
        ({"one_by_one": True, "in_process": True}, "one_by_one"),
    ],
)
def test_options_without_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        FunctionReward("own_rewards.by_name", **options)
