"""Packed rows: layout, mask and the choice of how many completions share a row."""

import torch

from lit_group_rl.packing import members_per_row, pack

TRUE = torch.ones(1, dtype=torch.bool)


def test_the_layout_of_two_completions_behind_their_prompt():
    """Prompt 7 8, completions 1 2 3 and 4 5: inputs 7 8 | 1 2 | 4, as nothing follows a last token.

    The shorter completion comes first: 7 8 | 4 | 1 2, positions 0 1 | 2 | 2 3.
    """
    prompt = torch.tensor([[0, 7, 8], [0, 7, 8]])
    prompt_mask = prompt > 0
    ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    packed = pack(prompt, prompt_mask, ids, ids > 0, torch.zeros(2), torch.float32, 10**6, 1)
    assert packed.input_ids.tolist() == [[7, 8, 4, 1, 2]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 2, 3]]
    assert packed.predicts.tolist() == [[1, 3, 4], [1, 2, 0]]
    sees = packed.attention_mask[0, 0] == 0
    assert sees.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],  # the first completion sees the prompt and itself
        [1, 1, 0, 1, 0],  # the second does not see the first
        [1, 1, 0, 1, 1],
    ]


def test_single_completions_are_left_as_they_are():
    ids = torch.tensor([[1, 2], [3, 4]])
    assert pack(ids, ids > 0, ids, ids > 0, torch.arange(2), torch.float32, 64, 64) is None


def test_long_prompts_are_shared_by_all_and_long_completions_by_none():
    assert members_per_row(prompt=500, completion=20, members=8, width=4096, inner=11008) == 8
    assert members_per_row(prompt=10, completion=2000, members=8, width=64, inner=128) == 1
