"""The matrix of runs with processes that only pretend: what is run, resumed, skipped, refused and told."""

from __future__ import annotations

import json
import os
import signal

import pytest

from lit_group_rl.cli.compare_arms import arms_of
from lit_group_rl.cli.compare_runs import Job, Matrix
from lit_group_rl.cli.refusal import Refusal


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def jobs(names=("grpo", "rloo"), seeds=(1, 2), completions=512, options=()):
    arms, _ = arms_of(names, [], options)
    from pathlib import Path

    return [Job(arm, seed, Path("out/runs"), completions) for seed in seeds for arm in arms]


def leave(job, steps, completions, number="0001"):
    """What a run of ``fit`` leaves."""
    folder = job.home / number
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.csv").write_text(f"step,progress/completions\n{steps},{completions}\n")
    (folder / "summary.json").write_text(json.dumps({"rl_steps": steps, "completions": completions}))


class Fake:
    """Processes by name of the run: exit code, and what they leave; each ends at the second look."""

    def __init__(self, outcomes=None):
        self.outcomes, self.started, self.most = outcomes or {}, [], 0
        self.alive = 0

    def __call__(self, job, at_once):
        self.started.append(job.name)
        self.alive += 1
        self.most = max(self.most, self.alive)
        return _Process(self, job, self.outcomes.get(job.name, 0))


class _Process:
    def __init__(self, fake, job, outcome):
        self.fake, self.job, self.outcome, self.looks, self.told = fake, job, outcome, 0, []

    def poll(self):
        self.looks += 1
        if self.looks < 2:
            return None
        self.fake.alive -= 1
        if self.outcome == 0:
            leave(self.job, self.job.steps, self.job.completions)
        elif isinstance(self.outcome, str):
            (self.job.home / "log.txt").write_text(self.outcome)
            return 2
        return self.outcome

    def terminate(self):
        self.told.append("terminate")
        self.fake.terminated = [*getattr(self.fake, "terminated", []), self.job.name]

    def wait(self, timeout=None):
        return 143


def run(matrix):
    ended = []
    matrix.run(lambda m, job: ended.append(job.name) if job else None)
    return ended


def test_every_recipe_has_a_seed_before_any_has_the_next():
    fake = Fake()
    matrix = Matrix(jobs(), starter=fake, pause=0)
    assert run(matrix) == ["grpo-seed1", "rloo-seed1", "grpo-seed2", "rloo-seed2"]
    assert (matrix.ended, matrix.failed, fake.most) == (4, {}, 1)


def test_as_many_run_at_once_as_asked():
    fake = Fake()
    run(Matrix(jobs(seeds=(1, 2, 3)), at_once=3, starter=fake, pause=0))
    assert fake.most == 3


def test_what_is_finished_is_not_run_again_and_what_was_broken_off_is():
    plan = jobs()
    done, broken, *_ = plan
    Matrix(plan)  # the settings are noted when a comparison begins
    leave(done, steps=2, completions=512)
    leave(broken, steps=1, completions=256)
    fake = Fake()
    matrix = Matrix(plan, starter=fake, pause=0)
    assert matrix.skipped == 1
    run(matrix)
    assert fake.started == ["rloo-seed1", "grpo-seed2", "rloo-seed2"]
    assert Matrix(plan).waiting == []


def test_the_budget_in_completions_ends_a_run_as_well_as_its_steps():
    job = jobs(completions=512)[0]
    # grpo: 32 prompts x 8 = 256 completions a step, 512 in 2 steps
    assert job.steps == 2
    leave(job, steps=1, completions=511)
    assert not job.finished()
    leave(job, steps=1, completions=700)
    assert job.finished()


def test_the_finished_folder_counts_and_not_a_later_one_that_was_begun():
    job = jobs()[0]
    leave(job, 2, 512, "0001")
    leave(job, 1, 256, "0002")
    assert job.folder().name == "0001"


def test_a_failed_run_has_its_reason_and_the_others_go_on():
    said = "run x\nTraceback\nerror: model.policy: no such file (a.yaml line 3). Fix it.\nbye\n"
    matrix = Matrix(jobs(), starter=Fake({"rloo-seed1": said, "grpo-seed2": 143}), pause=0)
    run(matrix)
    assert {job.name: why for job, why in matrix.failed.items()} == {
        "rloo-seed1": "error: model.policy: no such file (a.yaml line 3). Fix it.",
        "grpo-seed2": "it was stopped; the same command goes on with it",
    }
    assert matrix.ended == 4


def test_a_run_that_says_it_is_done_and_is_not_has_failed():
    class Short(Fake):
        def __call__(self, job, at_once):
            leave(job, 1, 256)
            (job.home / "log.txt").write_text("step 1\n")
            return type("Gone", (), {"poll": lambda self: 0})()

    matrix = Matrix(jobs(("grpo",), (1,)), starter=Short(), pause=0)
    run(matrix)
    assert list(matrix.failed.values()) == ["it ended before its budget (step 1)"]


@pytest.mark.parametrize(("how", "expected"), [("interrupt", KeyboardInterrupt), ("sigterm", SystemExit)])
def test_when_told_to_stop_the_running_ones_are_told_and_no_further_one_begins(how, expected):
    fake = Fake()
    matrix = Matrix(jobs(), at_once=2, starter=fake, pause=0)

    def tell(matrix, job):
        if how == "interrupt":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(expected) as stop:
        matrix.run(tell)
    assert fake.started == fake.terminated == ["grpo-seed1", "rloo-seed1"]
    if how == "sigterm":
        assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_folder_of_other_settings_is_refused_with_what_changed():
    Matrix(jobs())
    with pytest.raises(Refusal, match=r"out/runs/grpo-seed1 was made with other settings: completions 512 -> 256"):
        Matrix(jobs(completions=256))
    with pytest.raises(Refusal, match=r"model.learning_rate 0.0001 -> 0.001\. Choose another folder with --out"):
        Matrix(jobs(options=["--model.learning_rate=0.001"]))
    # more seeds and more recipes in the same folder are no other settings
    Matrix(jobs(("grpo", "rloo", "dapo"), (1, 2, 3)))


def test_a_run_is_asked_for_what_it_needs():
    arms, _ = arms_of(["grpo+scale/smoke"], ["data/addition"], ["--model.learning_rate=0.01"])
    from pathlib import Path

    job = Job(arms[0], 7, Path("out/runs"), 40)
    # smoke: 4 prompts x 4 = 16 completions a step, 40 in 3 steps
    assert job.command() == [
        "fit", "grpo", "scale/smoke", "data/addition", "--model.learning_rate=0.01", "--steps=3", "--seed=7",
        "--run_root=out/runs", "--run_name=grpo_smoke-seed7",
        "--trainer.callbacks+=lit_group_rl.callbacks.CompletionBudget", "--trainer.callbacks.completions=40",
        "--resume=auto",
    ]  # fmt: skip


def test_time_left_is_told_by_the_completions_made(monkeypatch):
    import time

    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    plan = jobs(("grpo", "rloo"), (1, 2))
    Matrix(plan)
    leave(plan[0], 1, 256)
    matrix = Matrix(plan, starter=Fake(), pause=0)
    assert matrix.seconds_left() is None  # nothing made yet
    now = 110.0
    leave(plan[0], 2, 512)
    # 256 made in 10 seconds; three runs of 512 are left
    assert matrix.seconds_left() == pytest.approx(60)
