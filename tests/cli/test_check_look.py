"""The memory estimate of ``check``, worked by hand."""

from types import SimpleNamespace

import pytest
import torch

from lit_group_rl.cli.check_look import memory_gb

GB = 2**30


class Model:
    """2^28 float32 weights that nobody holds, 2 layers of width 1024, a vocabulary of 1000, 1000 tokens at a time."""

    def __init__(self, needs, checkpointing=False):
        net = torch.nn.Linear(2**14, 2**14, bias=False, device="meta")
        config = SimpleNamespace(num_hidden_layers=2, hidden_size=1024, vocab_size=1000)
        self.policy = SimpleNamespace(
            net=net, model=SimpleNamespace(config=config), gradient_checkpointing=checkpointing
        )
        self.micro_batch_tokens, self.needs = 1000, needs

    def describe(self, prompts):
        return SimpleNamespace(needs=lambda what: self.needs)


# a copy of the weights is 2^28 * 4 bytes = 1 GiB: policy, gradient, two moments of Adam, and the reference
ACTIVATIONS = 1000 * (16 * 2 * 1024 + 3 * 1000) * 4 / GB
LESS = 1000 * ((2 + 16) * 1024 + 3 * 1000) * 4 / GB


@pytest.mark.parametrize(
    ("needs", "checkpointing", "shards", "expected"),
    [
        (["kl"], False, 1, 5 + ACTIVATIONS),
        ([], False, 1, 4 + ACTIVATIONS),
        ([], True, 1, 4 + LESS),
        # half of everything but activations; while drawing, the other half of the policy comes to it
        (["kl"], False, 2, 5 / 2 + max(ACTIVATIONS, 1 / 2)),
        ([], False, 4, 4 / 4 + max(ACTIVATIONS, 3 / 4)),
    ],
)
def test_memory(needs, checkpointing, shards, expected):
    assert memory_gb(Model(needs, checkpointing), 2**28, shards) == pytest.approx(expected)
