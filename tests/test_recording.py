"""What is measured of a rollout."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from lit_group_rl import metric_bag
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.recording import SAMPLED, Recorder, log_rollout, stands_in
from lit_group_rl.rewards.base import Reward
from lit_group_rl.rewards.runner import RewardMonitor, score_rewards
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Sample
from tests.builders import make_batch


@pytest.mark.parametrize("text", ["7", "it is 7.", "x=7, so 7", "(7)", "17 and 7", "**7**"])
def test_an_answer_stands_in_a_text_as_a_word(text):
    assert stands_in("7", text)


@pytest.mark.parametrize("text", ["", "177", "7.5", "1,7", "x7", "7th", "2.7 or 70"])
def test_a_part_of_a_word_or_number_is_no_answer(text):
    assert not stands_in("7", text)
    assert not stands_in("", text)


def test_answers_that_the_reward_missed_are_a_share_of_the_unsolved():
    batch = make_batch(scores=[1, 0, 0, 0, 0], solved=[1, 0, 0, 0, 0])
    texts = ["7", "so 7!", "8", "17", "7"]
    answers = ["7", "7", "7", "7", None]
    batch.samples = [
        dataclasses.replace(s, completion=t, answer=a) for s, t, a in zip(batch.samples, texts, answers, strict=True)
    ]
    bag = MetricBag()
    log_rollout(batch, bag)
    # of the three unsolved rows with an answer, one holds it
    assert bag.reduce()["reward/answer_missed_frac"] == pytest.approx(1 / 3)


class Column(Reward):
    """The numbers of a column of the data."""

    def __init__(self, name, weight):
        self.name, self.weight = name, weight

    def score(self, samples):
        return [s.fields[self.name] for s in samples]


def variances(rewards):
    columns = {"a": [1.0, 3.0, 5.0, 5.0], "b": [0.0, 1.0, 0.0, None]}
    batch = make_batch(rows=4, group_ids=[0, 0, 1, 1])
    rows = [{name: values[i] for name, values in columns.items()} for i in range(4)]
    batch.samples = [Sample("", "", None, row, 1, False) for row in rows]
    score_rewards(rewards, batch, Clock(0, 1), 1, RewardMonitor())
    return {k: v for k, v in batch.metrics.reduce().items() if k.startswith("reward_variance/")}


def test_the_variance_that_each_reward_brings_is_that_of_its_weighted_scores_inside_groups():
    rewards = {"a": Column("a", 0.5), "b": Column("b", 2.0), "idle": Column("a", 0.0)}
    # a: groups (1, 3) and (5, 5): variances 1 and 0, mean over rows 0.5, times 0.5^2 = 0.125
    # b: groups (0, 1) and (0): variance 0.25 on two rows, 0 on one, mean 0.5 / 3, times 2^2 = 2 / 3
    assert variances(rewards) == pytest.approx({"reward_variance/a": 0.125, "reward_variance/b": 2 / 3})


def test_a_single_reward_has_nothing_to_be_compared_with():
    assert variances({"a": Column("a", 1.0), "idle": Column("b", 0.0)}) == {}


def test_a_quantile_is_that_of_all_values_together(monkeypatch):
    """Not the mean of the quantiles of rounds, nor of processes."""
    one, two = MetricBag(), MetricBag()
    one.quantile("length/p95", torch.tensor([1.0, 2.0]), 0.95)
    two.quantile("length/p95", torch.tensor([100.0]), 0.95)
    one.merge(two)
    # of 1, 2, 100 at place 0.95 * 2 = 1.9: 2 + 0.9 * 98 = 90.2; the mean of 1.95 and 100 is 51
    assert one.reduce()["length/p95"] == pytest.approx(90.2)
    # as between two processes: the other one has logged 3, 4
    other = {"length/p95": (0.95, torch.tensor([3.0, 4.0], dtype=torch.float64))}
    monkeypatch.setattr(metric_bag, "all_objects", lambda v: [v, other] if isinstance(v, dict) else [v, v])
    # of 1, 2, 3, 4, 100 at place 0.95 * 4 = 3.8: 4 + 0.8 * 96 = 80.8
    assert one.reduce()["length/p95"] == pytest.approx(80.8)


def test_how_far_a_step_moves_the_weights():
    torch.manual_seed(0)
    small, large = (torch.nn.Parameter(torch.randn(n)) for n in (100, 20 * SAMPLED + 7))
    still = torch.nn.Parameter(torch.ones(5), requires_grad=False)
    module = SimpleNamespace(
        policy=torch.nn.ParameterList([small, still, large]),
        device=torch.device("cpu"),
        clock=Clock(0, 1),
        describe=lambda prompts: SimpleNamespace(components=list),
    )
    recorder = Recorder()
    recorder.start(module)
    with torch.no_grad():
        change = [0.01 * torch.randn_like(p) for p in (small, large)]
        for p, d in zip((small, large), change, strict=True):
            p += d
    size = torch.cat([small - change[0], large - change[1]]).detach().norm()
    # 65,545 of the weights stand for all: the deviation of such a ratio is 0.7 / sqrt(65,545) = 0.3 %
    found = recorder.finish(MetricBag(), module)["optim/update_to_weight"]
    assert found == pytest.approx(float(torch.cat(change).norm() / size), rel=0.015)
    assert sum(b.numel() for b in recorder._before) < 2 * SAMPLED
    with torch.no_grad():  # the next step is measured from where this one ended
        small *= 1.5
        large *= 1.5
    assert recorder.finish(MetricBag(), module)["optim/update_to_weight"] == pytest.approx(0.5, rel=1e-5)
