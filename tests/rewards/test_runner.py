import logging
import math
import random

import numpy as np
import pytest
import torch

from lit_group_rl.rewards import ExactMatch, RewardBroken, RewardMonitor, score_rewards
from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.runner import total_score
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import BASELINE, RecipeError, RolloutBatch, Sample

NAN = math.nan


def batch_of(completions, answers=None, group_ids=None, fields=None, roles=None) -> RolloutBatch:
    n = len(completions)
    ids = torch.ones(n, 3, dtype=torch.long)
    mask = torch.ones(n, 3, dtype=torch.bool)
    samples = [
        Sample("p", c, None if answers is None else answers[i], {} if fields is None else fields[i], 3, False)
        for i, c in enumerate(completions)
    ]
    return RolloutBatch(
        prompt_ids=ids,
        prompt_mask=mask,
        completion_ids=ids,
        completion_mask=mask,
        mask=mask.clone(),
        group_ids=torch.tensor(group_ids if group_ids is not None else [0] * n),
        row_ids=torch.arange(n),
        truncated=torch.zeros(n, dtype=torch.bool),
        temperature=1.0,
        behaviour_logp=torch.zeros(n, 3),
        samples=samples,
        row_role=torch.tensor(roles if roles is not None else [0] * n),
    )


class Given(Reward):
    """Returns what it was built with, or calls it."""

    def __init__(self, result, weight=1.0, solved_at=1.0, range=None):
        self.result, self.weight, self.solved_at, self.range = result, weight, solved_at, range

    def score(self, samples):
        return self.result(samples) if callable(self.result) else self.result


class InGroup(Given):
    def score_batch(self, batch):
        return self.result(batch)


def run(rewards, batch, step=0, monitor=None):
    score_rewards(rewards, batch, Clock(step, 10), 1, monitor or RewardMonitor())
    return batch


def test_total_leaves_abstentions_out():
    """Known fault B05."""
    # two rewards of weight 1: [1,-], [0,-], [-,-], [1,1] -> 1, 0, none, 2
    first, second = torch.tensor([1.0, 0.0, NAN, 1.0]), torch.tensor([NAN, NAN, NAN, 1.0])
    total = total_score({"a": first, "b": second}, {"a": 1.0, "b": 1.0})
    torch.testing.assert_close(total, torch.tensor([1.0, 0.0, NAN, 2.0], dtype=torch.float64), equal_nan=True)


def test_unscored_row_leaves_the_mask_and_the_means():
    batch = run({"a": Given([1, 0, None, 1]), "b": Given([None, None, None, 1])}, batch_of("wxyz"))
    assert batch.mask.any(1).tolist() == [True, True, False, True]
    assert batch.solved.tolist() == [True, False, False, True]
    metrics = batch.metrics.reduce()
    assert metrics["reward/mean"] == 1.0  # (1 + 0 + 2) / 3
    assert metrics["reward_part/a"] == pytest.approx(2 / 3)
    assert metrics["reward_part/b"] == 1.0
    assert metrics["reward/accuracy"] == pytest.approx(2 / 3)
    assert metrics["reward/abstain_frac"] == 0.25


def test_weights_and_a_column_of_weight_zero():
    batch = run({"a": Given([1, 2], weight=0.5), "seen": Given([7, None], weight=0)}, batch_of("xy"))
    assert batch.scores.tolist() == [0.5, 1.0]
    assert batch.rewards["seen"][0] == 7
    alone = run({"a": Given([None, 2]), "seen": Given([7, 7], weight=0)}, batch_of("xy"))
    assert alone.scores.isnan().tolist() == [True, False]


def test_first_reward_decides_what_is_solved():
    batch = run({"main": Given([0.4, 0.6], solved_at=0.5), "other": Given([1, 1])}, batch_of("xy"))
    assert batch.solved.tolist() == [False, True]


def test_baseline_rows_are_scored_but_not_counted():
    batch = run({"a": Given([1, 0])}, batch_of("xy", roles=[BASELINE, 0]))
    assert batch.scores.tolist() == [1, 0]
    assert batch.metrics.reduce()["reward/mean"] == 0


@pytest.mark.parametrize(
    "result",
    [
        [1, 0, 1],
        [True, False, True],
        (1.0, 0.0, 1.0),
        [np.float32(1), np.int64(0), np.bool_(True)],
        np.array([1.0, 0.0, 1.0]),
        [torch.tensor(1), torch.tensor(0.0), torch.tensor(True)],
        torch.tensor([1, 0, 1]),
        [np.array(1.0), 0, 1],
    ],
)
def test_kinds_of_numbers(result):
    batch = run({"a": Given(result)}, batch_of("xyz"))
    assert batch.scores.dtype == torch.float64
    assert batch.scores.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([1, "0.5"], ["value 1", "str", "'0.5'"]),
        ([1, [0.5]], ["value 1", "list"]),
        ([1, np.array([0.5])], ["value 1", "ndarray"]),
        ([1], ["1 values", "2 completions"]),
        ([1, 0, 1], ["3 values", "2 completions"]),
        (1.0, ["float", "where a list is due"]),
        (None, ["NoneType", "where a list is due"]),
        ("11", ["str", "where a list is due"]),
        (torch.ones(2, 1), ["Tensor", "where a list is due"]),
        ({"a": 1, "b": 2}, ["dict", "where a list is due"]),
    ],
)
def test_wrong_results_are_refused_by_name(result, words):
    """Known fault B52: another number of values than completions is among them."""
    with pytest.raises(RecipeError) as error:
        run({"mine": Given(result)}, batch_of("xy"))
    for word in ["model.rewards.mine", "one per completion", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, 10**400])
def test_infinity_abstains_with_a_warning_that_names_the_sample(bad, caplog):
    with caplog.at_level(logging.WARNING):
        batch = run({"a": Given([1.0, bad])}, batch_of(["fine", "culprit"]))
    assert batch.scores.isnan().tolist() == [False, True]
    assert "culprit" in caplog.text


def test_out_of_range_is_clamped_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        batch = run({"a": Given([1e38, -3, 0.5, None], range=(0.0, 1.0))}, batch_of("wxyz"))
    assert batch.scores[:3].tolist() == [1.0, 0.0, 0.5]
    assert batch.scores[3].isnan()
    assert "outside its range [0, 1]" in caplog.text


def raising_on(bad):
    def score(samples):
        for s in samples:
            if s.completion in bad:
                raise KeyError(s.completion)
        return [1.0] * len(samples)

    return score


def test_only_the_raising_completion_abstains(caplog):
    batch = run({"a": Given(raising_on({"y"}))}, batch_of("xyz"))
    assert batch.scores.isnan().tolist() == [False, True, False]
    assert batch.metrics.reduce()["reward/error_frac"] == pytest.approx(1 / 3)
    assert "Traceback" in caplog.text
    assert "completion 'y'" in caplog.text


def test_an_exception_in_place_of_a_score_fails_that_completion(caplog):
    batch = run({"a": Given([1.0, KeyError("lost"), 0.0])}, batch_of("xyz"))
    assert batch.scores.isnan().tolist() == [False, True, False]
    assert batch.metrics.reduce()["reward/error_frac"] == pytest.approx(1 / 3)
    assert "completion 'y'" in caplog.text


def test_each_kind_of_failure_is_shown_once(caplog):
    monitor = RewardMonitor()
    for step in range(2):
        run({"a": Given(raising_on({"y"}))}, batch_of("xyyzz"), step, monitor)
    assert caplog.text.count("Traceback") == 1


def test_a_reward_that_compares_members_is_retried_by_group():
    def score(batch):
        if any(s.completion == "bad" for s in batch.samples):
            raise ValueError("bad group")
        return [float(len(batch))] * len(batch)

    batch = run({"a": InGroup(score)}, batch_of(["x", "bad", "y", "z"], group_ids=[3, 3, 5, 5]))
    assert batch.scores.isnan().tolist() == [True, True, False, False]
    assert batch.scores[2:].tolist() == [2.0, 2.0]


def test_a_reward_that_keeps_failing_ends_the_run():
    monitor, rewards = RewardMonitor(), {"mine": Given(raising_on({"x", "y"}))}
    for step in range(2):
        run(rewards, batch_of("xyz"), step, monitor)
    with pytest.raises(RewardBroken, match=r"model\.rewards\.mine: failed on 2 of 3.*KeyError"):
        run(rewards, batch_of("xyz"), 2, monitor)


def test_one_good_step_or_half_failing_starts_the_count_again():
    monitor = RewardMonitor()
    for step, completions in enumerate(["xy", "xy", "zz", "xy", "xy", "xz", "xy", "xy"]):
        run({"a": Given(raising_on({"x", "y"}))}, batch_of(completions), step, monitor)


def test_rounds_of_one_step_are_counted_together():
    # 3 of 4 fail in each round of one step: that is one bad step, not three
    monitor = RewardMonitor()
    for _ in range(5):
        run({"a": Given(raising_on({"x"}))}, batch_of("xxxz"), 0, monitor)


def test_monitor_goes_on_after_an_interruption():
    monitor, rewards = RewardMonitor(), {"a": Given(raising_on({"x"}))}
    for step in range(2):
        run(rewards, batch_of("x"), step, monitor)
    resumed = RewardMonitor()
    resumed.load_state_dict(monitor.state_dict())
    with pytest.raises(RewardBroken):
        run(rewards, batch_of("x"), 2, resumed)


def test_a_reward_cannot_change_the_batch():
    def vandal(samples):
        for s in samples:
            s.fields["list"].append(1)
            s.fields["new"] = 1
        return [0.0] * len(samples)

    fields = [{"list": []}, {"list": []}]
    batch = run({"a": Given(vandal)}, batch_of("xy", fields=fields))
    assert [s.fields for s in batch.samples] == [{"list": []}, {"list": []}]


def test_randomness_belongs_to_seed_step_and_name():
    def draw(samples):
        return [random.random() + np.random.rand() + torch.rand(()).item() for _ in samples]

    def scores(step):
        return run({"a": Given(draw)}, batch_of("xy"), step).scores.tolist()

    random.seed(5)
    state = random.getstate()
    assert scores(0) == scores(0) != scores(1)
    assert random.getstate() == state


def test_five_completions_two_without_an_answer_give_five_scores_in_order():
    """Known fault B52."""
    texts = ["<answer>4</answer>", "no", "<answer>4</answer>", "", "<answer>5</answer>"]
    batch = run({"a": ExactMatch(extract="answer_tag")}, batch_of(texts, answers=["4"] * 5))
    assert batch.scores.tolist() == [1, 0, 1, 0, 0]


def test_an_empty_share_of_a_process_is_fine():
    assert len(run({"a": ExactMatch()}, batch_of([])).scores) == 0
