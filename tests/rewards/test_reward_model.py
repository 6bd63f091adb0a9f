"""A sequence classification model as a reward."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from lit_group_rl.rewards import RewardModel
from lit_group_rl.tiny import char_tokenizer
from lit_group_rl.types import Recipe, RecipeError, Sample

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"


def config(**options):
    tokenizer = char_tokenizer()
    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, **({"pad_token_id": tokenizer.pad_token_id, "num_labels": 1} | options),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    LlamaForSequenceClassification(config()).save_pretrained(tmp_path)
    char_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def sample(prompt, completion):
    return Sample(prompt, completion, None, {}, len(completion) + 1, False)


def by_hand(folder, text):
    """The head on the state of the text's last token, one text at a time and without padding."""
    model = LlamaForSequenceClassification.from_pretrained(folder)
    ids = char_tokenizer()(text, return_tensors="pt").input_ids
    with torch.no_grad():
        return model.score(model.model(input_ids=ids).last_hidden_state[0, -1]).item()


def test_scores_are_those_of_each_text_alone_whatever_the_batch(folder):
    samples = [sample("1+1=", "2"), sample("12+3=", "154"), sample("9+9=", "")]
    expected = [by_hand(folder, s.prompt + s.completion) for s in samples]
    assert len(set(expected)) == 3
    for size in (1, 2, 3):
        scores = RewardModel(str(folder), batch_size=size, device="cpu").score(samples)
        assert scores == pytest.approx(expected, abs=1e-5)


def test_a_template_is_used_if_there_is_one(folder):
    tokenizer = char_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    messages = [{"role": "user", "content": "1+1="}]
    expected = pytest.approx([by_hand(folder, "u:1+1=;a:2;")], abs=1e-5)
    assert RewardModel(str(folder), device="cpu").score([sample(messages, "2")]) == expected
    assert RewardModel(str(folder), device="cpu").score([sample("1+1=", "2")]) == expected
    plain = RewardModel(str(folder), device="cpu", chat=False).score([sample("1+1=", "2")])
    assert plain == pytest.approx([by_hand(folder, "1+1=2")], abs=1e-5)


def test_long_texts_lose_their_beginning(folder):
    scores = RewardModel(str(folder), device="cpu", max_tokens=4).score([sample("12345", "678")])
    assert scores == pytest.approx([by_hand(folder, "5678")], abs=1e-5)


def test_a_tokenizer_without_padding_uses_its_end_token(folder):
    tokenizer = char_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    samples = [sample("1+1=", "2"), sample("12+3=", "15")]
    expected = [by_hand(folder, s.prompt + s.completion) for s in samples]
    assert RewardModel(str(folder), device="cpu").score(samples) == pytest.approx(expected, abs=1e-5)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(RecipeError, match="neither a pad nor an end token"):
        RewardModel(str(folder), device="cpu").score(samples)


def test_models_that_are_no_reward_are_refused(folder, tmp_path):
    LlamaForSequenceClassification(config(num_labels=2)).save_pretrained(folder)
    reward = RewardModel(str(folder))
    with pytest.raises(RecipeError, match="2 labels"):
        reward.score([sample("1", "2")])
    (problem,) = reward.checks(Recipe({}, 4, 4, 1))
    assert "2 labels" in problem.message
    assert problem.fix == "Use a model with num_labels 1"
    LlamaForCausalLM(config()).save_pretrained(folder)
    with pytest.raises(RecipeError, match=r"lacks score.weight.*random"):
        RewardModel(str(folder)).score([sample("1", "2")])
    (problem,) = RewardModel(str(tmp_path / "nothing")).checks(Recipe({}, 4, 4, 1))
    assert "there is no folder" in problem.message


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="batch_size"):
        RewardModel("x", batch_size=0)
