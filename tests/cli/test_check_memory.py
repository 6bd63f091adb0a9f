"""The memory estimate of ``check``: what a forward keeps, and sums worked by hand."""

from types import SimpleNamespace

import pytest
import torch

from lit_group_rl.cli.check_memory import PROCESS, kept_per_token, memory_gb, tokens_of
from lit_group_rl.functional.logprobs import PLAIN_ELEMENTS
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules.base import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt

GB = 2**30
KEPT, PROMPT, OWN = 50_000.0, 24, 8
LOGITS = 12 * PLAIN_ELEMENTS


def module_of(needs=(), checkpointing=False, packs=True, micro_batch_tokens=100, tied=False):
    """2^28 float32 weights that nobody holds, 2 layers of width 1024 with 4 key heads of 64, 100,000 words."""
    net = torch.nn.Linear(2**14, 2**14, bias=False, device="meta")
    config = SimpleNamespace(
        num_hidden_layers=2, hidden_size=1024, vocab_size=100_000, num_attention_heads=16, num_key_value_heads=4,
        tie_word_embeddings=tied,
    )  # fmt: skip
    config.get_text_config = lambda: config
    return SimpleNamespace(
        policy=SimpleNamespace(
            net=net,
            model=SimpleNamespace(config=config),
            gradient_checkpointing=checkpointing,
            packs=packs,
            decode_rows=64,
        ),
        sampler=SimpleNamespace(longest=OWN, group_size=4),
        models={},
        minibatches=2,
        micro_batch_tokens=micro_batch_tokens,
        describe=lambda prompts: SimpleNamespace(needs=lambda what: needs),
    )


# a copy of the weights is 2^28 * 4 bytes = 1 GiB; rows of 32 tokens, 2 layers * (key, value) * 4 * 64 * 4 bytes each
CACHE = 64 * 32 * 2 * 2 * 4 * 64 * 4


@pytest.mark.parametrize(
    ("options", "prompts", "shards", "on_cpu", "expected"),
    [
        # policy, gradient, two moments, reference; a full micro-batch
        ({"needs": ["kl"]}, 32, 1, False, 5 * GB + 100 * KEPT + LOGITS),
        # the one group of a minibatch: its prompt once and 4 completions
        ({"micro_batch_tokens": 10**6}, 2, 1, False, 4 * GB + (24 + 32) * KEPT + LOGITS),
        # the same padded
        ({"micro_batch_tokens": 10**6, "packs": False}, 2, 1, False, 4 * GB + 4 * (24 + 8) * KEPT + LOGITS),
        # half of what one layer keeps at a time, and the input of both layers
        ({"checkpointing": True}, 32, 1, False, 4 * GB + 100 * (KEPT / 2 + 1024 * 2 * 4) + LOGITS),
        # two gradients of a head of 100,000 x 1024
        ({"tied": True}, 32, 1, False, 4 * GB + 100 * KEPT + LOGITS + 2 * 100_000 * 1024 * 4),
        # on a CPU drawing needs more: a copy of the weights and the cache
        ({}, 32, 1, True, PROCESS + 4 * GB + GB + CACHE),
        # half of everything; while drawing, the other half of the policy
        ({}, 32, 2, False, 2 * GB + GB / 2 + CACHE),
    ],
)
def test_memory(options, prompts, shards, on_cpu, expected):
    found = memory_gb(module_of(**options), KEPT, PROMPT, prompts, shards, on_cpu)
    assert found == pytest.approx(expected / GB)


@pytest.fixture(scope="module")
def policy():
    policy = CharPolicy(hidden_size=32, layers=3, heads=2, context_tokens=32)
    policy.load()
    return policy


def drawn(policy, *prompts):
    sampler = GroupSampler(group_size=4, max_new_tokens=6)
    return sampler.sample(policy, [Prompt(p) for p in prompts], range(len(prompts)), Clock(0, 1), 1)


def test_prompts_count_once_where_nothing_is_padded(policy):
    batch = drawn(policy, "1+1=", "10+20=")
    assert tokens_of(batch, packs=True) == 4 + 6 + int(batch.lengths.sum())
    assert tokens_of(batch, packs=False) == 8 * (6 + batch.completion_mask.shape[1])


def test_what_a_forward_keeps(policy):
    batch = drawn(policy, "1+1=", "10+20=")
    found = kept_per_token(policy, batch)
    # a layer of width d = 32 with a feed-forward part of 96: at least its input, the normed one, queries, keys and
    # values, and gate, up, its activation and their product; a few times that with what attention gathers
    least = 3 * (5 * 32 + 4 * 96) * 4
    assert least < found < 4 * least
    assert all(p.grad is None for p in policy.net.parameters())
