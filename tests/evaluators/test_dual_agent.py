"""The evaluator in complete runs: what it learns, what it pays, what survives an interruption."""

import math

import pytest
import torch

from lit_group_rl.callbacks.base import RunCallback
from lit_group_rl.callbacks.checkpoint import CheckpointCallback
from lit_group_rl.data import Addition, PromptData
from lit_group_rl.evaluators import DualAgent
from lit_group_rl.evaluators.judges import ScalarJudge, TokenJudge, left_padded, packed, pooled_states
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.rewards import EvaluatorScore
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import LossContext, Recipe, RecipeError
from lit_group_rl.update_schedules import Alternate
from tests.builders import counts_of, make_batch
from tests.tiny_runs import Digits, digest, fit, weights


class Anchor(Digits):
    """Solved where three in ten characters are digits; labels the evaluator and is no part of the reward."""

    weight, solved_at = 0.0, 0.3


def agent(**options):
    return DualAgent(**({"yes": "y", "no": "n", "learning_rate": 3e-3, "max_accuracy": 1.0} | options))


def run(evaluator, steps=3, prompts=4, **changes):
    parts = {
        "evaluator": evaluator,
        "rewards": {"digits": Anchor(), "evaluator": EvaluatorScore()},
        "update_schedule": Alternate([("policy", 1)], {"evaluator": steps}),
        "data": PromptData(Addition(level=1), prompts_per_step=prompts, heldout_size=8, seed=1),
        "steps": steps,
    }
    return fit(**(parts | changes))


def rank_probability(soft, right):
    """Chance that a right completion is scored above a wrong one: the area under the ROC curve."""
    gap = soft[right][:, None] - soft[~right][None]
    return ((gap > 0).double() + (gap == 0).double() / 2).mean().item()


class Area(RunCallback):
    """The evaluator's area under the ROC curve on the completions of each step, before it has learned from them."""

    def __init__(self):
        self.values = []

    def on_metrics(self, trainer, module, step, metrics):
        batch = module.last_batch
        self.values.append(rank_probability(batch.features["evaluator"], batch.solved))


@pytest.mark.parametrize("verdict", ["tokens", "scalar"])
def test_it_learns_to_tell_right_from_wrong(verdict):
    area = Area()
    run(agent(verdict=verdict, ema=0.0), steps=25, prompts=16, callbacks=[area])
    assert area.values[0] < 0.75
    assert sum(area.values[-5:]) / 5 > 0.9


def test_a_critique_read_by_a_small_scorer_learns_while_its_writer_is_frozen():
    area, evaluator = Area(), agent(verdict="critique", question="?", critique_tokens=2, ema=0.0, learning_rate=1e-2)
    module, _ = run(evaluator, steps=25, prompts=16, callbacks=[area])
    assert area.values[0] == 0.5  # undecided
    assert sum(area.values[-5:]) / 5 > 0.75
    for mine, policy in zip(evaluator.writer.parameters(), module.policy.model.parameters(), strict=True):
        assert torch.equal(mine, policy)
        assert not mine.requires_grad


@pytest.mark.parametrize("labels", ["adversarial", "preference"])
@pytest.mark.parametrize("verdict", ["tokens", "critique"])
def test_other_labels_give_finite_losses_that_fall(labels, verdict):
    _, log = run(agent(labels=labels, verdict=verdict, critique_tokens=2, learning_rate=1e-2), steps=8, prompts=8)
    losses = [log[step]["evaluator/loss"] for step in range(1, 9)]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


def test_it_reads_what_the_judge_says_in_the_two_forms():
    prob, _ = run(agent(reward="prob"), steps=1)
    odds, _ = run(agent(reward="log_odds"), steps=1)
    soft, logit = prob.last_batch.features["evaluator"], odds.last_batch.features["evaluator"]
    torch.testing.assert_close(soft, 1 / (1 + torch.exp(-logit)))
    assert not soft.requires_grad
    torch.testing.assert_close(prob.last_batch.scores, soft)


def test_the_size_of_the_parts_and_minibatches_of_one_row_change_nothing():
    one, log_one = run(agent(fresh=0.4), steps=4, micro_batch_tokens=10**6)
    many, log_many = run(agent(fresh=0.4), steps=4, micro_batch_tokens=8)
    for a, b in zip(one.models["evaluator"].parameters(), many.models["evaluator"].parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)
    for tag in ("evaluator/loss", "evaluator/accuracy", "evaluator/staleness", "loss/evaluator"):
        assert log_one[4][tag] == pytest.approx(log_many[4][tag], abs=1e-5), tag
    assert log_one[4]["loss/evaluator"] == pytest.approx(log_one[4]["evaluator/loss"], abs=1e-6)


def test_half_of_what_it_learns_from_is_old():
    _, log = run(agent(fresh=0.5, half_life=1e9), steps=3)
    assert [log[s]["evaluator/buffer_total"] for s in (1, 2, 3)] == [0, 16, 32]  # 4 prompts x 4 completions
    assert log[1]["evaluator/staleness"] == 0
    assert log[2]["evaluator/staleness"] == pytest.approx(0.5)  # 16 fresh, 16 of age 1
    assert 0.5 < log[3]["evaluator/staleness"] < 1.0  # ages 1 and 2 about equally: 0.75 expected
    _, log = run(agent(fresh=1.0), steps=3)
    assert log[3]["evaluator/staleness"] == 0


def test_only_the_labelled_share_is_learned_from():
    _, log = run(agent(label_rate=0.25), steps=2, prompts=64)
    # 256 completions at 1/4: mean 64, standard deviation sqrt(256 * 3/16) = 7
    assert abs(log[2]["evaluator/buffer_total"] - 64) < 28


class Weights(RunCallback):
    """Live and averaged weights after every step."""

    def __init__(self):
        self.live, self.average = {}, {}

    def on_metrics(self, trainer, module, step, metrics):
        evaluator = module.models["evaluator"]
        self.live[step] = torch.cat([p.detach().flatten() for p in evaluator.live.parameters()])
        self.average[step] = torch.cat([p.detach().flatten() for p in evaluator.average.parameters()])


def test_the_weights_that_score_follow_once_per_step_in_which_it_learned():
    seen = Weights()
    run(agent(ema=0.75), steps=5, callbacks=[seen], minibatches=2,
        update_schedule=Alternate([("policy", 2), ("evaluator", 1)], {"evaluator": 2}))  # fmt: skip
    start = seen.average[1]  # moved at the next rollout only
    second = 0.75 * start + 0.25 * seen.live[1]
    torch.testing.assert_close(seen.average[2], second)
    third = 0.75 * second + 0.25 * seen.live[2]
    torch.testing.assert_close(seen.average[3], third)
    assert torch.equal(seen.average[3], seen.average[4])  # the policy's turn
    assert not torch.equal(seen.live[2], start)


def test_it_rests_while_it_is_good_enough():
    seen = Weights()
    _, log = run(agent(max_accuracy=0.0), steps=2, prompts=16, callbacks=[seen])
    assert log[1]["evaluator/accuracy"] > 0
    assert torch.equal(seen.live[1], seen.live[2])
    assert torch.equal(seen.average[1], seen.average[2])
    assert "evaluator/loss" not in log[2]


def test_a_constant_verdict_is_not_good_enough_however_rare_one_label():
    evaluator = agent(max_accuracy=0.6)
    batch = make_batch(rows=10, group_ids=[0] * 10, scores=[0.0] * 10, solved=[True] + [False] * 9)
    batch.rewards = {"first": batch.scores}
    evaluator._rows = {i: (i + 1,) for i in range(10)}
    evaluator._scores = dict.fromkeys([(i + 1,) for i in range(10)], -1.0)  # "no" to all: 9 of 10, and (0 + 1) / 2
    evaluator.prepare(batch, Clock(0, 1))
    assert not evaluator._idle
    assert batch.metrics.reduce()["evaluator/accuracy"] == pytest.approx(0.9)

    evaluator._rows = {i: (i + 1,) for i in range(10)}
    evaluator._scores = {(i + 1,): 1.0 if i == 0 else -1.0 for i in range(10)}
    evaluator.prepare(batch, Clock(1, 2))
    assert evaluator._idle


class Undecided(torch.nn.Module):
    """Log-odds 0 for everything."""

    def forward(self, ids, mask):
        return torch.zeros(len(ids), requires_grad=True)


def test_the_loss_is_the_mean_cross_entropy_with_smoothed_labels():
    evaluator = agent(fresh=1.0, label_smoothing=0.2)
    evaluator.live = Undecided()
    batch = make_batch(rows=4, group_ids=[0] * 4, scores=[0.0] * 4, solved=[True, False, False, False])
    batch.rewards = {"first": batch.scores}
    evaluator._rows = {i: (i + 1,) for i in range(4)}
    evaluator._scores = dict.fromkeys([(i + 1,) for i in range(4)], 0.0)
    evaluator.prepare(batch, Clock(0, 1))
    ctx = LossContext(batch, None, None, None, counts_of(batch.mask, batch.group_ids), Clock(0, 1), 1, MetricBag())
    assert evaluator.loss(ctx, None).item() == pytest.approx(math.log(2))
    part = LossContext(batch.rows(torch.tensor([0])), None, None, None, ctx.counts, Clock(0, 1), 1, MetricBag())
    assert evaluator.loss(part, None).item() == pytest.approx(math.log(2) / 4)
    part.batch.mask = torch.zeros_like(part.batch.mask)  # stands in for a micro-batch that only another process has
    assert evaluator.loss(part, None).item() == 0.0

    class Sure(torch.nn.Module):
        def forward(self, ids, mask):
            return torch.full((len(ids),), 2.0, requires_grad=True)

    evaluator.live = Sure()
    # labels 0.9 and 0.1: -0.9 log s(2) - 0.1 log s(-2) = 0.326928, and 1.926928 for the wrong ones
    assert evaluator.loss(ctx, None).item() == pytest.approx((0.326928 + 3 * 1.926928) / 4, abs=1e-5)


def test_buffer_and_average_survive_an_interruption(tmp_path):
    def parts():
        turns = Alternate([("policy", 1), ("evaluator", 1)], {"evaluator": 1})
        return {"evaluator": agent(label_rate=0.7), "update_schedule": turns}

    def saved(name, every=1):
        return [CheckpointCallback(tmp_path / name, every=every)]

    unbroken, _ = run(**parts(), steps=4, callbacks=saved("a"))
    run(**parts(), steps=3, callbacks=saved("b"))
    resumed, _ = run(**parts(), steps=4, callbacks=saved("b"), resume_from=tmp_path / "b")
    assert digest(resumed) == digest(unbroken)
    mine, theirs = resumed.models["evaluator"], unbroken.models["evaluator"]
    assert list(mine.replay.examples) == list(theirs.replay.examples)
    assert len({e.step for e in mine.replay.examples}) == 4
    assert bool(mine.moved) == bool(theirs.moved)


def test_the_generator_learns_from_the_soft_reward_alone():
    module, log = run(agent(), steps=3, update_schedule=Alternate([("policy", 1), ("evaluator", 1)]))
    fresh = CharPolicy(hidden_size=32, layers=1, heads=2, context_tokens=32)
    fresh.load()
    moved = weights(module) - torch.cat([p.detach().flatten() for p in fresh.net.parameters()])
    assert moved.abs().max() > 1e-4
    assert log[1]["reward/mean"] == pytest.approx(log[1]["reward_part/evaluator"])


def test_contradictions_are_found_before_the_run():
    anchored = {"digits": Anchor(), "evaluator": EvaluatorScore()}

    def problems(evaluator, rewards=anchored, group_size=4):
        recipe = Recipe({"rewards": rewards, "evaluator": evaluator}, 4, group_size, 1)
        return [p.field for _, part in recipe.components() for p in part.checks(recipe)]

    assert problems(agent()) == []
    assert problems(agent(label_rate=0.0)) == ["model.evaluator.label_rate"]
    assert problems(agent(labels="preference", label_rate=0.0)) == ["model.evaluator.label_rate"]
    assert problems(agent(labels="adversarial", label_rate=0.0)) == []
    assert problems(None) == ["model.evaluator"]
    assert problems(agent(), rewards={"digits": Anchor()}) == ["model.rewards"]
    assert problems(agent(), rewards={"evaluator": EvaluatorScore()}) == ["model.rewards"]
    assert problems(agent(labels="preference"), group_size=1) == ["model.sampler.group_size"]
    for option, value in (("fresh", 0.0), ("ema", 1.0), ("label_smoothing", 1.0), ("label_rate", 2.0), ("capacity", 0)):
        with pytest.raises(ValueError, match=option):
            agent(**{option: value})


def test_a_verdict_is_one_token():
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    with pytest.raises(RecipeError, match=r"model.evaluator.yes: 'yes' is 3 tokens"):
        DualAgent(yes="yes", no="n").build(policy)


def test_judges_do_not_see_the_padding():
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    judge = TokenJudge(policy.model, yes=5, no=6)
    head = ScalarJudge(policy.model.base_model)
    torch.nn.init.normal_(head.head.weight)
    short, long = (3, 4), (9, 8, 7, 6, 5)
    with torch.no_grad():
        together, alone = left_padded([short, long], torch.device("cpu")), left_padded([short], torch.device("cpu"))
        for read in (judge, head, lambda ids, mask: pooled_states(policy.model.base_model, ids, mask)[:, 0]):
            torch.testing.assert_close(read(*together)[:1], read(*alone))
        logits = policy.model(input_ids=torch.tensor([short])).logits[0, -1]
        torch.testing.assert_close(judge(*alone)[0], logits[5] - logits[6])


def test_rows_are_packed_under_the_limit():
    assert packed([3, 9, 4, 2], 12) == [[1], [2, 0, 3]]
    assert packed([50], 12) == [[0]]
    assert packed([], 12) == []
