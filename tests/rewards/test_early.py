"""Rewards in processes of their own begin while completions are still being drawn."""

import gc
import threading

import pytest
import torch

from lit_group_rl.rewards import FunctionReward, RewardMonitor, score_rewards
from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.early import EarlyScores
from lit_group_rl.schedules.base import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt, Sample
from tests.rewards.test_worker import batch_of
from tests.tiny_runs import digest, fit


class Lengths(Reward):
    """The length of the completion; holds its first call until told to go on."""

    early = True

    def __init__(self, go=None):
        self.calls, self.threads, self.go, self.started = [], [], go, threading.Event()

    def score(self, samples):
        self.calls.append([s.completion for s in samples])
        self.threads.append(threading.current_thread())
        self.started.set()
        if self.go is not None and len(self.calls) == 1:
            assert self.go.wait(10)
        if any(s.completion == "bad" for s in samples):
            raise ValueError("bad")
        return [float(len(s.completion)) for s in samples]


class Policy:
    on_completion = None


def samples(*texts):
    return [Sample("p", text, "a", {}, 2, False) for text in texts]


def told(rewards, given):
    early, policy = EarlyScores(rewards), Policy()
    with early.listening(policy):
        for sample in given:
            policy.on_completion(sample)
    assert policy.on_completion is None
    return early


def scored(rewards, given, early):
    batch = batch_of(given)
    score_rewards(rewards, batch, Clock(0, 1), 1, RewardMonitor(), early)
    return batch


def finish(early, name, count):
    """Wait until the thread has scored ``count`` completions."""
    line = early._lines[name]
    with line._changed:
        assert line._changed.wait_for(lambda: len(line._done) == count and not line._busy, 10)


def test_what_was_scored_early_is_not_asked_for_again():
    reward, given = Lengths(), samples("a", "bb", "ccc")
    early = told({"r": reward}, given[:2])
    finish(early, "r", 2)
    batch = scored({"r": reward}, given, early)
    assert batch.rewards["r"].tolist() == [1, 2, 3]
    assert reward.calls == [["a"], ["bb"], ["ccc"]]
    assert reward.threads[0] is reward.threads[1] is not threading.current_thread()
    assert reward.threads[2] is threading.current_thread()
    scored({"r": reward}, given, early)
    assert reward.calls[3:] == [["a", "bb", "ccc"]]  # of the next batch nothing is known


def test_the_call_under_way_is_waited_for_and_what_waits_goes_into_the_ordinary_call():
    go = threading.Event()
    reward, given = Lengths(go), samples("a", "bb", "ccc")
    early = told({"r": reward}, given)
    assert reward.started.wait(10)
    threading.Timer(0.2, go.set).start()
    assert scored({"r": reward}, given, early).rewards["r"].tolist() == [1, 2, 3]
    assert reward.calls == [["a"], ["bb", "ccc"]]


def test_as_many_are_scored_at_once_as_the_reward_can_take():
    class Meets(Lengths):
        at_once = 3
        barrier = threading.Barrier(3, timeout=10)

        def score(self, samples):
            self.barrier.wait()  # passed by three calls at the same time only
            return super().score(samples)

    reward, given = Meets(), samples("a", "bb", "ccc")
    early = told({"r": reward}, given)
    finish(early, "r", 3)
    assert scored({"r": reward}, given, early).rewards["r"].tolist() == [1, 2, 3]
    assert len(set(reward.threads)) == 3


def test_a_failure_is_settled_by_the_ordinary_call():
    reward, given = Lengths(), samples("a", "bad", "ccc")
    early = told({"r": reward}, given)
    finish(early, "r", 2)
    batch = scored({"r": reward}, given, early)
    assert batch.rewards["r"].isnan().tolist() == [False, True, False]
    assert batch.metrics.reduce()["reward/error_frac"] == pytest.approx(1 / 3)


def test_completions_of_other_prompts_are_kept_apart():
    reward = Lengths()
    one, other = Sample("p", "a", "a", {"k": 1}, 2, False), Sample("q", "a", "a", {"k": 2}, 2, False)
    early = told({"r": reward}, [one])
    finish(early, "r", 1)
    assert early.take("r", [other, one]) == {1: 1.0}


def test_rewards_that_are_not_early_are_not_told():
    class Whole(Lengths):
        early = False

    policy = Policy()
    early = EarlyScores({"r": Whole()})
    with early.listening(policy):
        assert policy.on_completion is None
    assert early.take("r", samples("a")) == {}


def test_its_threads_end_with_it():
    reward = Lengths()
    early = told({"r": reward}, samples("a"))
    finish(early, "r", 1)
    assert reward.threads[0].is_alive()
    del early
    gc.collect()
    reward.threads[0].join(10)
    assert not reward.threads[0].is_alive()


def test_every_row_is_told_once_with_its_tokens():
    policy = CharPolicy(hidden_size=32, layers=1, heads=2, context_tokens=32)
    policy.load()
    told = {}

    def on_end(row, ids, truncated):
        assert row not in told
        told[row] = ids, truncated

    prompts = [policy.encode(Prompt(t)) for t in ("1+1=", "2+3=", "4+4=")]
    options = {"copies": 4, "keys": range(12), "max_new_tokens": 6, "temperature": 1.0}
    drawn = policy.generate(prompts, on_end=on_end, **options)
    assert told == {i: (drawn.ids[i][drawn.mask[i]].tolist(), bool(drawn.truncated[i])) for i in range(12)}
    assert torch.equal(policy.generate(prompts, **options).ids, drawn.ids)


def test_a_run_is_the_same_whether_the_reward_began_early(tmp_path, monkeypatch):
    (tmp_path / "own_early.py").write_text(
        "def digits(completions): return [sum(c.isdigit() for c in t) / max(1, len(t)) for t in completions]\n"
    )
    monkeypatch.chdir(tmp_path)
    taken = []
    take = EarlyScores.take
    monkeypatch.setattr(EarlyScores, "take", lambda *a: taken.append(take(*a)) or taken[-1])
    runs = [fit(rewards={"digits": FunctionReward("own_early.digits", one_by_one=one)})[0] for one in (False, True)]
    assert digest(runs[0]) == digest(runs[1])
    assert any(taken)
