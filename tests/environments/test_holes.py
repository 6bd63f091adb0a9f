"""Tokens of an environment inside a completion: nothing that trains may see them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import lit_group_rl.advantages
import lit_group_rl.aggregators
import lit_group_rl.aux_losses
import lit_group_rl.clip_policies
import lit_group_rl.loss_weights
import lit_group_rl.ratios
import lit_group_rl.rewards
import lit_group_rl.surrogates
from lit_group_rl.aggregators import TokenMean
from lit_group_rl.batching import weightless
from lit_group_rl.cli import catalog
from lit_group_rl.clip_policies import FixedClip
from lit_group_rl.environments import Calculator
from lit_group_rl.metric_bag import MetricBag
from lit_group_rl.ratios import TokenRatio
from lit_group_rl.recording import log_mismatch
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.surrogates import Clipped
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt, RolloutBatch
from tests.builders import counts_of, make_batch, make_context

CLOCK = Clock(1, 10)
MASK = [
    [1, 1, 0, 0, 1, 1],
    [1, 0, 1, 1, 0, 0],
    [1, 1, 1, 0, 1, 0],
    [1, 0, 0, 0, 0, 1],
    [1, 1, 1, 1, 1, 1],
    [1, 0, 1, 0, 1, 0],
]
REAL = [6, 4, 5, 6, 6, 5]
"""Tokens of each row, the holes included."""
NEEDS: dict[str, dict[str, Any]] = {
    "BetweenGroup": {"base": lit_group_rl.advantages.GroupRelative(), "quality": "quality"},
    "GDPO": {"weights": {"quality": 1.0, "form": 0.5}},
    "NoisyAdvantage": {"base": lit_group_rl.advantages.GroupRelative()},
    "WinsorisedAdvantage": {"base": lit_group_rl.advantages.GroupRelative()},
    "PassAtK": {"k": 2},
    "NoisyRatio": {"base": TokenRatio()},
    "Quadratic": {"delta": 0.2},
    "GroupWeight": {"quality": "quality"},
    "GroupSupervised": {"quality": "quality"},
    "FixedLength": {"length": 10},
    "ClipCov": {"cov_low": -9.0, "cov_high": 9.0, "share": 0.2},
}
PACKAGES = {
    "advantage": "advantages",
    "ratio": "ratios",
    "aggregator": "aggregators",
    "clip_policy": "clip_policies",
    "surrogate": "surrogates",
    "shapers": "rewards",
}
BY_POSITION = {"ClipCov"}
"""Draws a random number for each place of a row, and a row without its holes has other places."""


def batch_with_holes() -> RolloutBatch:
    g = torch.Generator().manual_seed(3)

    def numbers(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(6, 6, generator=g, dtype=torch.float64)

    batch = make_batch(
        MASK,
        scores=[1.0, 0.0, 0.5, 1.0, 0.0, 0.25],
        solved=[True, False, False, True, False, False],
        group_ids=[0, 0, 0, 1, 1, 1],
        rewards={"quality": [1.0, 0.0, 0.5, 1.0, 0.0, 0.25], "form": [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]},
        row_role=[0, 0, 2, 0, 0, 1],
        advantages=numbers(-1, 1),
        old_logp=numbers(-3, -0.1),
        behaviour_logp=numbers(-3, -0.1),
        ref_logp=numbers(-3, -0.1),
        values=numbers(0, 1),
        returns=numbers(0, 1),
    )
    batch.mask[5] = False  # a baseline row
    batch.written = torch.tensor(MASK, dtype=torch.bool)
    batch.completion_mask = torch.arange(6)[None] < torch.tensor(REAL)[:, None]
    batch.max_new_tokens = 6
    return batch


def without_holes(value: Tensor, written: Tensor) -> Tensor:
    """[B, T] with the written tokens of each row moved together."""
    return value.gather(1, (~written).long().argsort(dim=1, stable=True))


def compact(batch: RolloutBatch) -> RolloutBatch:
    """The same episodes as if the environment had said nothing."""
    written, changes = batch.written, {}
    for f in dataclasses.fields(batch):
        value = getattr(batch, f.name)
        if isinstance(value, Tensor) and value.shape == written.shape:
            changes[f.name] = without_holes(value, written)
    return dataclasses.replace(batch, **changes | {"completion_mask": changes["written"], "written": None})


def build(slot: str, name: str) -> Any:
    package = getattr(lit_group_rl, PACKAGES.get(slot, slot))
    return getattr(package, name)(**NEEDS.get(name, {}))


def shipped(*slots: str) -> list[tuple[str, str]]:
    return [(slot, name) for slot in slots for name in catalog.names(slot)]


@pytest.mark.parametrize(("slot", "name"), shipped("advantage", "shapers"))
def test_scores_and_advantages_do_not_see_holes(slot, name):
    holes, plain = batch_with_holes(), compact(batch_with_holes())
    part, again = build(slot, name), build(slot, name)
    if slot == "shapers":
        found, expected = part.shape(holes, CLOCK), again.shape(plain, CLOCK)
    else:
        found, expected = part.estimate(holes).values, again.estimate(plain).values
    if found.dim() == 2:
        assert not found[~holes.mask].any(), "a value at a token that is not trained"
        found = without_holes(found, holes.written)
    torch.testing.assert_close(found, expected)
    assert found.abs().sum() > 0


def loss_of(batch: RolloutBatch, logp: Tensor, entropy: Tensor, slot: str, part: Any) -> Tensor:
    """What module.py makes of a micro-batch, with one part in its slot."""
    parts = {"ratio": TokenRatio(), "clip_policy": FixedClip(), "surrogate": Clipped(), "aggregator": TokenMean()}
    parts |= {slot: part} if slot in parts else {}
    for one in (*parts.values(), part):
        one.prepare(batch, CLOCK)
    ctx = make_context(batch, logp, ratio=parts["ratio"], clip_policy=parts["clip_policy"], entropy=entropy)
    if slot == "aux_losses":
        part.observe(ctx)
        chosen = part.selection(batch)
        own = part.aggregator() or TokenMean()
        return own.reduce(part.term(ctx), chosen, counts_of(chosen, batch.group_ids))
    values = parts["surrogate"].loss(ctx, parts["clip_policy"].bounds(ctx))
    if slot == "loss_weights":
        part.observe(ctx)
        values = values * part.weight(ctx)
    return parts["aggregator"].reduce(values, ctx.mask, ctx.counts)


@pytest.mark.parametrize(
    ("slot", "name"), shipped("ratio", "clip_policy", "surrogate", "loss_weights", "aux_losses", "aggregator")
)
def test_the_loss_and_its_gradient_do_not_see_holes(slot, name):
    holes = batch_with_holes()
    g = torch.Generator().manual_seed(4)
    # what a scoring forward leaves at the holes would be 0; here it is garbage, and must not matter
    logp = (-3 * torch.rand(6, 6, generator=g, dtype=torch.float64)).requires_grad_()
    entropy = torch.rand(6, 6, generator=g, dtype=torch.float64).requires_grad_()
    loss = loss_of(copy.deepcopy(holes), logp, entropy, slot, build(slot, name))
    grads = torch.autograd.grad(loss, [logp, entropy], allow_unused=True)
    for grad in grads:
        assert grad is None or not grad[~holes.mask].any(), "a gradient at a token that is not trained"
    assert any(grad is not None and grad.any() for grad in grads)
    if name in BY_POSITION:
        return
    short, short_entropy = (without_holes(x.detach(), holes.written).requires_grad_() for x in (logp, entropy))
    expected = loss_of(compact(holes), short, short_entropy, slot, build(slot, name))
    torch.testing.assert_close(loss, expected)
    for grad, variable in zip(grads, (short, short_entropy), strict=True):
        if grad is not None:
            (of_short,) = torch.autograd.grad(expected, variable, retain_graph=True)
            torch.testing.assert_close(without_holes(grad, holes.written), of_short)


@pytest.fixture(scope="module")
def drawn() -> tuple[CharPolicy, RolloutBatch]:
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    sampler = GroupSampler(group_size=40, max_new_tokens=12, temperature=1.5, environment=Calculator())
    with torch.no_grad():
        batch = sampler.sample(policy, [Prompt("2+3=", "5"), Prompt("31+8=", "39")], [0, 1], Clock(0, 1), 2)
    assert (batch.completion_mask & ~batch.written).any()
    return policy, batch


def test_log_probs_are_those_of_a_plain_forward_over_the_whole_text(drawn):
    policy, batch = drawn
    scored = policy.score(batch, entropy=True)
    for row in range(len(batch)):
        prompt = batch.prompt_ids[row][batch.prompt_mask[row]]
        completion = batch.completion_ids[row][batch.completion_mask[row]]
        logits = policy.model(input_ids=torch.cat([prompt, completion])[None]).logits[0] / 1.5
        # the state before a token predicts it
        plain = logits[len(prompt) - 1 : -1].log_softmax(-1)
        own = batch.written[row, : len(completion)]
        expected = plain.gather(1, completion[:, None]).squeeze(1)[own]
        for found in (scored.logp, batch.behaviour_logp):
            torch.testing.assert_close(found[row][batch.written[row]], expected, atol=1e-5, rtol=1e-5)
        spread = -(plain.exp() * plain).sum(1)[own]
        for found in (scored.entropy, batch.entropy):
            torch.testing.assert_close(found[row][batch.written[row]], spread, atol=1e-5, rtol=1e-5)
    assert not scored.logp[~batch.written].any()
    assert not scored.entropy[~batch.written].any()


def test_no_gradient_comes_from_the_logits_of_the_environments_tokens(drawn):
    policy, batch = drawn
    seen: list[int] = []
    # the head is not called for these tokens at all: the states that go into it are those before written tokens
    from lit_group_rl import scoring

    real = scoring.head_logprobs

    def watched(hidden: Tensor, *args: Any, **options: Any) -> Any:
        seen.append(len(hidden))
        return real(hidden, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "head_logprobs", watched)
        policy.score(batch)
    assert seen == [int(batch.written.sum())]
    # and through a model that gives logits for every place, their gradient is exactly 0
    net = copy.deepcopy(policy.net)
    net.simple_head = net.can_pack = False
    net.model.set_attn_implementation("eager")
    kept: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    net.model.get_output_embeddings().register_forward_hook(keep)
    scores = net(
        batch.prompt_ids, batch.prompt_mask, batch.completion_ids, batch.completion_mask, scored=batch.written,
        temperature=1.5,
    )  # fmt: skip
    scores.logp.sum().backward()
    places = kept[0].grad.abs().sum(-1)  # [B, T]: the logits that predict each completion token
    assert not places[~batch.written].any()
    assert (places[batch.written] > 0).all()


def test_rows_cut_joined_and_stood_in_for_keep_the_holes(drawn):
    policy, batch = drawn
    index = torch.tensor([int(i) for i in (batch.completion_mask & ~batch.written).any(1).nonzero()[:2]])
    rows = batch.rows(index)
    assert rows.written.shape == rows.completion_mask.shape
    joined = RolloutBatch.cat([rows, batch.rows(torch.tensor([0]))])
    assert torch.equal(joined.written[:2, : rows.written.shape[1]], rows.written)
    torch.testing.assert_close(policy.score(rows).logp, policy.score(joined).logp[:2, : rows.mask.shape[1]])
    stand_in = weightless(batch)
    assert stand_in.written.all()
    assert not stand_in.mask.any()
    assert policy.score(stand_in).logp.requires_grad


def test_the_mismatch_is_measured_on_the_policys_tokens_only():
    # trained tokens differ by 0.5, -0.1 and 0.2 nats, the hole by 9:  kl = 0.6 / 3 = 0.2, abs = 0.8 / 3, max = 0.5
    batch = make_batch(
        [[1, 0, 1], [1, 0, 0]],
        behaviour_logp=[[-1.0, 0.0, -1.1], [-0.8, 0, 0]],
        old_logp=[[-1.5, -9.0, -1.0], [-1.0, 0, 0]],
    )
    bag = MetricBag()
    log_mismatch(batch, bag)
    numbers = bag.reduce()
    assert numbers["mismatch/kl"] == pytest.approx(0.2)
    assert numbers["mismatch/abs_mean"] == pytest.approx(0.8 / 3)
    assert numbers["mismatch/abs_max"] == pytest.approx(0.5)
