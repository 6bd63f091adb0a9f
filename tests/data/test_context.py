import logging

import pytest

from lit_group_rl.data.context import fitting
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import Prompt, RecipeError


@pytest.fixture(scope="module")
def loaded():
    """One token a character, a context of 32."""
    policy = CharPolicy(hidden_size=32, layers=1, heads=2, context_tokens=32)
    policy.load()
    return policy


@pytest.fixture
def policy(loaded):
    yield loaded
    loaded.prompt_limit = None


# with 8 new tokens 24 are left: 24 characters fit, 25 do not
PROMPTS = [Prompt("1" * n, place=f"line {i}") for i, n in enumerate((3, 24, 25, 31, 7), 1)]


def test_long_prompts_are_refused_left_out_or_cut(policy, caplog):
    told = (
        r"2 of 5 training prompts do not fit: the longest, line 4, has 31 tokens, .* room for 24 in the context of 32"
    )
    with pytest.raises(RecipeError, match=rf"data\.source: {told}.*on_long_prompt"):
        fitting(PROMPTS, policy, 8, "error", "training")
    with caplog.at_level(logging.WARNING):
        kept = fitting(PROMPTS, policy, 8, "drop", "training")
        assert [len(p.text) for p in kept] == [3, 24, 7]
        assert fitting(PROMPTS, policy, 8, "truncate_left", "training") == PROMPTS
    assert "they are left out" in caplog.text
    assert "their beginning is cut off" in caplog.text
    assert [len(policy.encode(p)) for p in PROMPTS] == [3, 24, 24, 24, 7]
    policy.prompt_limit = 2
    assert policy.encode(Prompt("123")) == policy.encode(Prompt("23"))


def test_what_fits_is_not_encoded(policy, monkeypatch):
    monkeypatch.setattr(policy, "_encode", lambda prompt: [0] if prompt.text == "a" else pytest.fail("it was encoded"))
    policy._encoded.clear()
    prompts = [Prompt("1" * 23)] * 3  # 23 characters and the one token that stands for what is added
    assert fitting(prompts, policy, 8, "error", "training") is prompts


def test_a_start_token_is_kept(policy, monkeypatch):
    monkeypatch.setattr(policy, "tokenizer", type("T", (), {"bos_token_id": 1, "eos_token_id": 2}))
    monkeypatch.setattr(policy, "_encode", lambda prompt: [1, 10, 11, 12, 13])
    policy._encoded.clear()
    policy.prompt_limit = 3
    assert policy.encode(Prompt("abcd")) == [1, 12, 13]
    policy._encoded.clear()


def test_nothing_left_is_refused(policy):
    with pytest.raises(RecipeError, match="so none is left"):
        fitting(PROMPTS[2:4], policy, 8, "drop", "training")
    with pytest.raises(RecipeError, match=r"model\.sampler\.max_new_tokens: 32 new tokens leave no room"):
        fitting(PROMPTS, policy, 32, "drop", "training")


def test_an_absurd_prompt_is_counted_in_part(policy):
    with pytest.raises(RecipeError, match=r"has over 1536 tokens") as error:  # 64 characters for each of 24 tokens
        fitting([Prompt("1" * 1_000_000)], policy, 8, "error", "training")
    assert len(str(error.value)) < 400
