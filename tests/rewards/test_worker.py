import gc
import os
import signal
import threading
import time

import pytest
import torch

from lit_group_rl.rewards import MathVerify, ReasoningGymReward, RewardMonitor, score_rewards
from lit_group_rl.rewards.base import ScorerError, ScorerTimeout
from lit_group_rl.rewards.worker import Worker
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import RecipeError, RolloutBatch, Sample


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def sample(completion, answer=None, fields=None):
    return Sample("p", completion, answer, fields or {}, 3, False)


def batch_of(samples):
    n = len(samples)
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
        samples=samples,
        row_role=torch.zeros(n, dtype=torch.long),
    )


def test_a_call_that_hangs_is_killed_and_the_next_one_works():
    worker = Worker("warm", "json")
    assert worker.call("sleep", 0.0, seconds=5) == 1.0
    pid = worker._process.pid
    start = time.perf_counter()
    with pytest.raises(ScorerTimeout):
        worker.call("sleep", 60.0, seconds=0.3)
    assert time.perf_counter() - start < 5
    assert not alive(pid)
    assert worker.call("sleep", 0.0, seconds=5) == 1.0
    worker.close()


def test_an_exception_comes_back_and_the_process_stays():
    worker = Worker("warm", "json")
    with pytest.raises(ScorerError, match="ValueError"):
        worker.call("sleep", -1.0, seconds=5)
    pid = worker._process.pid
    assert worker.call("sleep", 0.0, seconds=5) == 1.0
    assert worker._process.pid == pid
    worker.close()


def test_an_interrupted_call_does_not_answer_the_next_one():
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    worker, before = Worker("warm", "json"), signal.signal(signal.SIGALRM, interrupt)
    try:
        worker.call("sleep", 0.0, seconds=5)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            worker.call("sleep", 0.4, seconds=5)
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ScorerError, match="ValueError"):
        worker.call("sleep", -1.0, seconds=5)
    worker.close()


def test_no_process_outlives_its_worker():
    worker = Worker("warm", "json")
    worker.call("sleep", 0.0, seconds=5)
    pid = worker._process.pid
    del worker
    gc.collect()
    assert not alive(pid)


@pytest.fixture(scope="module")
def math():
    pytest.importorskip("math_verify")
    return MathVerify(seconds=3.0)


@pytest.mark.parametrize(
    ("gold", "completion", "score"),
    [
        ("0.5", "\\boxed{1/2}", 1),
        ("73", "Final Answer: **73**", 1),
        ("2500", "2,500", 1),
        ("17", "\\boxed{17}.", 1),
        ("x^2+2x+1", "\\boxed{(x+1)^2}", 1),
        ("17", "\\boxed{18}", 0),
        ("17", "", 0),
        ("five floors higher", "42", None),
        (None, "42", None),
    ],
)
def test_math_verify(math, gold, completion, score):
    """Known faults B46, B48."""
    assert math.score([sample(completion, gold)]) == [score]


def test_completions_without_an_answer_do_not_shift_the_others():
    pytest.importorskip("math_verify")
    texts = ["<answer>4</answer>", "4", "<answer>5</answer>", "", "<answer>4</answer>"]
    assert MathVerify(extract="answer_tag").score([sample(t, "4") for t in texts]) == [1, 0, 0, 0, 1]


def test_math_verify_survives_a_tower_of_powers_and_scores_the_rest(math):
    """Known fault B47."""
    hang = "\\boxed{\\frac{9^{9^{9^{9}}}}{1}}"
    start = time.perf_counter()
    samples = [sample("4", "4"), sample(hang, "7"), sample("5", "5")]
    batch = batch_of(samples)
    # in a thread, where the alarm that the library would set for itself is not allowed
    thread = threading.Thread(
        target=score_rewards, args=({"math": math}, batch, Clock(0, 1), 1, RewardMonitor()), daemon=True
    )
    thread.start()
    thread.join(60)
    assert batch.rewards["math"].tolist() == [1, 0, 1]
    assert batch.metrics.reduce()["reward/timeout_frac"] == pytest.approx(1 / 3)
    # 3 s and 1 for the hang; a fresh process imports the library again, outside of the limit
    assert time.perf_counter() - start < 60


class Sleeps(MathVerify):
    library = "json"

    def request(self, sample):
        return "sleep", 1.0


def test_a_batch_has_a_limit_too():
    reward = Sleeps(batch_seconds=0.01, on_timeout="abstain")
    batch = batch_of([sample("4", "4")] * 3)
    score_rewards({"a": reward}, batch, Clock(0, 1), 1, RewardMonitor())
    assert batch.rewards["a"].isnan().all()
    assert batch.metrics.reduce()["reward/timeout_frac"] == 1


def entry(task, config, question, answer, metadata=None):
    return {
        "task": task,
        "task_config": config,
        "entry": {"question": question, "answer": answer, "metadata": metadata},
    }


def test_reasoning_gym_scores_with_the_task():
    pytest.importorskip("reasoning_gym")
    reward = ReasoningGymReward()
    fields = entry("chain_sum", {}, "4 - 1 =", "3")
    assert reward.score([sample("3", "3", fields), sample("4", "3", fields), sample("", "3", fields)]) == [1, 0, 0]
    inside = ReasoningGymReward().score([sample("13", "3", fields)])[0]
    assert 0 < inside < 1  # the task pays a part for an answer that contains the right one


def test_reasoning_gym_scorer_that_raises_is_reported_in_place():
    pytest.importorskip("reasoning_gym")
    fields = entry("no_such_task", {}, "?", "3")
    found = ReasoningGymReward().score([sample("3", "3", fields)])
    assert isinstance(found[0], ScorerError)


def test_reasoning_gym_reward_needs_its_source():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(RecipeError, match=r"'task'.*ReasoningGym"):
        ReasoningGymReward().score([sample("3", "3")])


def test_a_missing_package_is_one_clear_message(monkeypatch):
    monkeypatch.setattr(MathVerify, "library", "no_such_package")
    with pytest.raises(RecipeError, match=r"MathVerify.*pip install 'lit-group-rl\[math\]'"):
        MathVerify()


def test_countdown_takes_the_given_numbers_only():
    """Known fault B53; the task pays 0.05 for any expression, 0.01 for any text."""
    pytest.importorskip("reasoning_gym")
    cases = [
        (22, "3*5+7", True),
        (50, "5*10", False),  # 10 is not given
        (22, "3*5+7+0", False),
        (22, "(3*5)+7+3-3", False),  # 3 is given once
        (22, "3*7+5/0", False),
        (22, "3*5+7" + "+0" * 2000, False),
        (22, "exit(3*5+7)", False),
    ]
    rows = []
    for target, completion, _ in cases:
        fields = entry("countdown", {}, "?", "3*5+7", {"numbers": [3, 5, 7], "target": target})
        rows += [sample(completion, "3*5+7", fields), sample("3*5+7", "3*5+7", fields)]
    found = ReasoningGymReward().score(rows)
    for (target, completion, right), score, reference in zip(cases, found[::2], found[1::2], strict=True):
        assert score == 1.0 if right else 0.0 <= score <= 0.05, completion[:40]
        assert reference == (1.0 if target == 22 else 0.05)
