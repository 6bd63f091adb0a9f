"""Layers are computed again in the backward pass, once, and nothing else changes."""

import pytest
import torch

from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules.base import Clock
from lit_group_rl.tiny import TinyPolicy
from lit_group_rl.types import Prompt


def gradient(checkpointing):
    policy = TinyPolicy(gradient_checkpointing=checkpointing)
    policy.load()
    prompts = [Prompt("12+3="), Prompt("7+1=")]
    batch = GroupSampler(group_size=3, max_new_tokens=6).sample(policy, prompts, [0, 1], Clock(0, 1), 1)
    calls = []
    # before the layer, not behind it: the second time it ends as soon as all that is needed is there
    policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        policy.score(batch)
    without = len(calls)
    policy.score(batch).logp.sum().backward()
    return torch.cat([p.grad.flatten() for p in policy.net.parameters()]), without, len(calls) - without


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing_enable")
def test_gradients_are_the_same_and_each_layer_runs_twice():
    plain, *calls = gradient(False)
    assert calls == [1, 1]
    again, *calls = gradient(True)
    assert calls == [1, 2]
    assert torch.equal(plain, again)
