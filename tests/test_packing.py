"""Packed rows: their layout, and what a completion may see."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lit_group_rl.batching import microbatches
from lit_group_rl.functional.rng import seeded
from lit_group_rl.packing import can_pack, pack, packed_states, same_states

PROMPTS = torch.tensor([[0, 7, 8], [9, 6, 5], [0, 7, 8]])
ANSWERS = torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]])


def test_a_prompt_comes_once_and_nothing_follows_a_last_token():
    """Prompts 7 8 and 9 6 5; completions 1 2 3 (first prompt), 4 5 (second), 6 (first): inputs 1 2 | 4 | nothing.

    Row: 7 8 | 9 6 5 | 1 2 | 4, places 0 1 | 2 3 4 | 5 6 | 7; a completion's positions go on from its prompt.
    """
    packed = pack(PROMPTS, PROMPTS > 0, ANSWERS, ANSWERS > 0, torch.tensor([3, 8, 3]), torch.float32)
    assert packed.input_ids.tolist() == [[7, 8, 9, 6, 5, 1, 2, 4]]
    assert packed.position_ids.tolist() == [[0, 1, 0, 1, 2, 2, 3, 3]]
    # the first token of each completion is predicted by the prompt's last state: places 1, 4, 1
    assert packed.predicts.tolist() == [[1, 5, 6], [4, 7, 0], [1, 0, 0]]


def test_a_completion_sees_its_prompt_and_itself():
    """Keys: three prompt places (the first prompt fills two), then the completion's own two, or one.

    Two tokens and one are too unequal for one call (2 * 2 > 1.25 * 3), and the third row has no input of its own.
    """
    packed = pack(PROMPTS, PROMPTS > 0, ANSWERS, ANSWERS > 0, torch.tensor([3, 8, 3]), torch.float32)
    first, second = packed.completions
    assert (first.prompt_of.tolist(), second.prompt_of.tolist()) == ([0], [1])
    assert (first.at.tolist(), second.at.tolist()) == ([[5, 6]], [[7]])
    assert (first.sees[0, 0] == 0).int().tolist() == [[1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]
    assert (second.sees[0, 0] == 0).int().tolist() == [[1, 1, 1, 1]]


def test_completions_of_similar_length_attend_in_one_call():
    """Inputs of 4, 4, 3, 1 tokens: 4 * 3 = 12 <= 1.25 * 11, but 4 * 4 = 16 > 1.25 * 12."""
    ids = torch.ones(4, 5, dtype=torch.long)
    mask = torch.arange(5) < torch.tensor([5, 2, 5, 4])[:, None]
    packed = pack(PROMPTS[[0, 0, 0, 0]], PROMPTS[[0, 0, 0, 0]] > 0, ids, mask, torch.zeros(4), torch.float32)
    assert [tuple(rows.at.shape) for rows in packed.completions] == [(3, 4), (1, 1)]


def test_without_groups_every_row_has_its_own_prompt():
    packed = pack(PROMPTS, PROMPTS > 0, ANSWERS, ANSWERS > 0, None, torch.float32)
    assert packed.input_ids.tolist() == [[7, 8, 9, 6, 5, 7, 8, 1, 2, 4]]


def rollout(prompt, own):
    """Two groups of rows with prompts of equal length and completions of the given lengths."""
    prompt_mask = torch.ones(2 * len(own), prompt, dtype=torch.bool)
    lengths, groups = torch.tensor(own + own), torch.arange(2).repeat_interleave(len(own))
    return SimpleNamespace(prompt_mask=prompt_mask, lengths=lengths, group_ids=groups, mask=prompt_mask)


def test_a_prompt_counts_once_in_a_micro_batch():
    """Prompt 4, completions 3, 2, 1: 4 + 3 + 2 + 1 = 10 tokens a group."""
    batch = rollout(4, [3, 2, 1])
    packs = [p.tolist() for p in microbatches(batch, 10, whole_groups=False, shared_prompts=True)]
    assert packs == [[0, 1, 2], [3, 4, 5]]
    packs = [p.tolist() for p in microbatches(batch, 20, whole_groups=False, shared_prompts=True)]
    assert packs == [[0, 1, 2, 3, 4, 5]]


def test_a_prompt_longer_than_a_micro_batch_is_not_repeated_for_every_row():
    """Prompt 20, budget 10: 20 + 8 + 8 = 36 <= 2 * 20, and a third completion would make 44."""
    packs = [p.tolist() for p in microbatches(rollout(20, [8, 8, 8]), 10, whole_groups=False, shared_prompts=True)]
    assert packs == [[0, 1], [2], [3, 4], [5]]


@pytest.fixture
def llama():
    config = LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    with seeded("packing"):
        return LlamaForCausalLM(config).eval()


def test_a_changed_completion_leaves_the_states_of_the_others_alone(llama):
    assert can_pack(llama)
    results = []
    for last in (2, 19):
        answers = torch.tensor([[1, 2, 3], [4, last, 1]])
        packed = pack(PROMPTS[[0, 2]], PROMPTS[[0, 2]] > 0, answers, answers > 0, torch.zeros(2), torch.float32, 2)
        results.append(packed_states(llama.base_model, packed)[packed.predicts])
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.allclose(results[0][1], results[1][1])


def test_other_attention_than_sdpa_is_left_alone(llama):
    llama.set_attn_implementation("eager")
    assert not can_pack(llama)
    assert llama.config._attn_implementation == "eager"


def test_our_attention_does_not_reach_the_saved_configuration(llama, tmp_path):
    assert can_pack(llama)
    llama.save_pretrained(tmp_path)
    assert "sdpa_packed" not in (tmp_path / "config.json").read_text()


def test_states_are_compared_beside_their_size():
    torch.manual_seed(0)
    plain = torch.randn(3, 4, 64)
    plain[..., 7] *= 50  # as in pretrained models: SmolLM2's reach 50, and rounding there 2e-4
    rounding = 3e-6 * plain.norm(dim=-1, keepdim=True) * torch.randn_like(plain)
    assert rounding.abs().max() > 1e-4
    assert same_states(plain + rounding, plain)
    one_off = plain.clone()
    one_off[2, 1] *= 1.001
    assert not same_states(one_off, plain)
