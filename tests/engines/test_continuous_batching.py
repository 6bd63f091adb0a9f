"""The continuous batching of transformers, on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from lit_group_rl.engines import ContinuousBatching
from lit_group_rl.environments import Calculator
from lit_group_rl.loss_weights import RolloutIS
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy, TinyPolicy
from lit_group_rl.types import Prompt
from tests.tiny_runs import fit

SMALL = {"page_size": 16, "num_blocks": 128, "max_batch_tokens": 128}
PROMPTS = [Prompt("24+53=", "77"), Prompt("c:abcd=", "abcd"), Prompt("s:3192=", "1239")]


@pytest.fixture(scope="module")
def policy() -> TinyPolicy:
    policy = TinyPolicy()
    policy.load()
    return policy


def drawn(policy, **options):
    sampler = GroupSampler(group_size=4, max_new_tokens=6, engine=ContinuousBatching(**SMALL), **options)
    with torch.no_grad():
        return sampler.sample(policy, PROMPTS, [0, 1, 2], Clock(0, 1), 1)


def test_its_log_probs_are_those_of_the_trainer(policy):
    before = policy.model.config._attn_implementation
    batch = drawn(policy, temperature=1.3)
    assert len(batch) == 12
    assert batch.group_ids.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert not batch.exact_logp, "so the trainer computes them anew"
    assert batch.entropy is None
    torch.testing.assert_close(policy.score(batch).logp.detach(), batch.behaviour_logp, atol=1e-4, rtol=1e-4)
    assert policy.model.config._attn_implementation == before
    # each row ends with its end token or is cut
    ends = [row[n - 1] in policy.eos_ids for row, n in zip(batch.completion_ids.tolist(), batch.lengths, strict=True)]
    assert [not e for e in ends] == batch.truncated.tolist()
    assert batch.lengths.max() <= 6


def test_greedy_completions_are_those_of_our_own_decoding(policy):
    own, engine = GroupSampler(max_new_tokens=6), GroupSampler(max_new_tokens=6, engine=ContinuousBatching(**SMALL))
    a, b = (s.draw(policy, PROMPTS, copies=1, keys=[0, 0, 0], temperature=0.0) for s in (own, engine))
    assert torch.equal(a.ids.where(a.mask, -1), b.ids.where(b.mask, -1))
    assert a.truncated.tolist() == b.truncated.tolist()
    torch.testing.assert_close(a.logp, b.logp, atol=1e-4, rtol=1e-4)


def test_drawing_follows_top_k_and_the_seed(policy):
    first, again = drawn(policy, temperature=2.0), drawn(policy, temperature=2.0)
    assert torch.equal(first.completion_ids, again.completion_ids)
    batch = drawn(policy, temperature=2.0, top_k=1)
    # the only token left has probability 1
    assert not batch.behaviour_logp.any()


def test_stop_texts_end_a_completion():
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    sampler = GroupSampler(
        group_size=24, max_new_tokens=12, environment=Calculator(), engine=ContinuousBatching(**SMALL)
    )
    with torch.no_grad():
        batch = sampler.sample(policy, PROMPTS[:1], [0], Clock(0, 1), 3)
    called = [s.turns for s in batch.samples if len(s.turns) > 1]
    assert called
    for turns in called:
        assert all(t.index(">") == len(t) - 1 for t in turns[:-1])
    scored = policy.score(batch).logp.detach()
    torch.testing.assert_close(scored[batch.mask], batch.behaviour_logp[batch.mask], atol=1e-4, rtol=1e-4)


def test_a_run_recomputes_the_log_probs_and_logs_the_mismatch():
    sampler = GroupSampler(group_size=4, max_new_tokens=4, engine=ContinuousBatching(**SMALL))
    module, log = fit(steps=1, minibatches=1, sampler=sampler, loss_weights={"tis": RolloutIS()})
    batch = module.last_batch
    assert batch.old_logp is not None
    assert 0 <= log[1]["mismatch/abs_mean"] <= log[1]["mismatch/abs_max"] < 1e-3
    assert log[1]["mismatch/weight_mean"] == pytest.approx(1, abs=1e-3)
    assert log[1]["mismatch/dropped_frac"] == 0
    assert log[1]["optim/update_to_weight"] > 0


def test_it_sees_new_weights_at_once(policy):
    weight = policy.model.get_input_embeddings().weight
    before = weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(1e-3)  # tied to the head, so all 58 tokens are equally likely
        batch = drawn(policy)
        expected = torch.full_like(batch.behaviour_logp[batch.mask], -math.log(58))
        torch.testing.assert_close(batch.behaviour_logp[batch.mask], expected, atol=0.1, rtol=0)
    finally:
        with torch.no_grad():
            weight.copy_(before)


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="page_size"):
        ContinuousBatching(page_size=2)
    with pytest.raises(ValueError, match="num_blocks"):
        ContinuousBatching(num_blocks=0)
