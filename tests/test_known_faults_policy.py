"""Faults that users of other trainers reported, tried on a policy; those of single components stand with these."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lit_group_rl.functional.rng import seeded
from lit_group_rl.policy import HFPolicy
from lit_group_rl.rewards import Format
from lit_group_rl.samplers import GroupSampler
from lit_group_rl.schedules.base import Clock
from lit_group_rl.types import Prompt

QUESTIONS = [Prompt("12+3=", "15"), Prompt("7+1=", "8"), Prompt("14+55=", "69")]
BOS, EOS, PAD = 1, 2, 0
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
WITHOUT_BOS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def tokenizer(template=None):
    """A character tokenizer that starts every text with a start token, as those of Llama do."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *"0123456789+=<>/abchiknst"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    made.decoder = decoders.Fuse()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = template
    return fast


def save(folder, model="llama", template=None):
    """A Hugging Face folder with weights of unit size, so that tokens differ clearly in probability."""
    words = tokenizer(template)
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    with seeded("test weights"):
        if model == "llama":
            sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
            net = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), max_position_embeddings=64, **sizes, **ids))
        else:  # learned absolute positions, and dropout on
            drop = {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}
            sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
            net = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **sizes, **drop, **ids))
        for p in net.parameters():
            p.data.normal_(0, 0.5)
    net.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def loaded(path, **options):
    policy = HFPolicy(path, **options)
    policy.load()
    return policy


def rollout(policy, questions=QUESTIONS, group_size=3, positions=None, seed=1, **options):
    sampler = GroupSampler(group_size=group_size, max_new_tokens=6, **options)
    with seeded("sample", seed):
        return sampler.sample(policy, questions, positions or list(range(len(questions))), Clock(0, 1), seed)


def move(policy, size=0.3):
    """Change the trainable weights, as an update would."""
    with torch.no_grad(), seeded("move"):
        for p in policy.net.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p), alpha=size)


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_rows_are_scored_alike_alone_and_beside_longer_prompts(tmp_path, model):
    """Known faults B12, B39: a shared prompt length or position counter misplaces the shorter rows."""
    policy = loaded(save(tmp_path, model))
    batch = rollout(policy)
    together = policy.score(batch).logp
    assert len({int(n) for n in batch.prompt_mask.sum(1)}) == 3
    for i in range(len(batch)):
        # row by row, without any padding, straight from the model
        ids = torch.cat([batch.prompt_ids[i][batch.prompt_mask[i]], batch.completion_ids[i][batch.completion_mask[i]]])
        n = int(batch.completion_mask[i].sum())
        logits = policy.model(ids[None]).logits[0, len(ids) - n - 1 : -1]
        alone = logits.log_softmax(-1).gather(1, ids[-n:, None])[:, 0]
        torch.testing.assert_close(together[i, :n], alone, rtol=1e-4, atol=1e-5)
        assert not together[i, n:].any()


def test_the_reference_of_a_fine_tuned_adapter_is_that_adapter(tmp_path):
    """Known fault B22."""
    pytest.importorskip("peft")
    base = save(tmp_path / "base")
    first = loaded(base, lora={"r": 2, "target_modules": "all-linear"})
    move(first)
    first._peft.save_pretrained(tmp_path / "adapter")

    policy = loaded(base, adapter=str(tmp_path / "adapter"))
    policy.add_reference()
    batch = rollout(policy)
    torch.testing.assert_close(policy.reference_logp(batch), policy.score(batch).logp, rtol=0, atol=1e-6)
    assert (loaded(base).score(batch).logp - policy.score(batch).logp).abs().max() > 0.1
    move(policy)
    assert (policy.reference_logp(batch) - policy.score(batch).logp).abs().max() > 0.1


@pytest.mark.parametrize("lora", [None, {"r": 2, "target_modules": "all-linear"}])
def test_the_reference_equals_the_policy_before_it_moves_and_stays_behind_when_it_does(tmp_path, lora):
    """Known fault B23: with and without adapters."""
    if lora:
        pytest.importorskip("peft")
    policy = loaded(save(tmp_path), lora=lora)
    policy.add_reference()
    batch = rollout(policy)
    start = policy.score(batch).logp.detach()
    torch.testing.assert_close(policy.reference_logp(batch), start, rtol=0, atol=1e-6)
    move(policy)
    torch.testing.assert_close(policy.reference_logp(batch), start, rtol=0, atol=1e-6)
    assert (policy.score(batch).logp - start).abs().max() > 0.1


def test_completions_come_from_the_newest_weights(tmp_path):
    """Known fault B41: nothing computed with older weights is used again."""
    policy = loaded(save(tmp_path / "a"))
    prompts = [policy.encode(q) for q in QUESTIONS]
    greedy = {"copies": 1, "keys": [0, 1, 2], "max_new_tokens": 6, "temperature": 0.0}
    before = policy.generate(prompts, **greedy).ids
    move(policy, 1.0)
    after = policy.generate(prompts, **greedy).ids
    policy.save(tmp_path / "b")
    fresh = loaded(str(tmp_path / "b")).generate(prompts, **greedy).ids
    assert after.tolist() == fresh.tolist()
    assert before.tolist() != after.tolist()
    batch = rollout(policy)
    torch.testing.assert_close(batch.behaviour_logp.float(), policy.score(batch).logp, rtol=0, atol=1e-5)


@pytest.mark.parametrize("template", [WITH_BOS, WITHOUT_BOS, None])
def test_a_prompt_starts_with_exactly_one_start_token(tmp_path, template):
    """Known fault B44."""
    policy = loaded(save(tmp_path, template=template))
    ids = policy.encode(QUESTIONS[0])
    assert ids == [BOS, *policy.tokenizer("12+3=", add_special_tokens=False).input_ids]
    batch = rollout(policy)
    assert batch.prompt_ids[0][batch.prompt_mask[0]].tolist() == ids


def test_rewards_see_no_end_token_at_the_end_and_every_marker_within(tmp_path):
    """Known fault B45."""
    policy = loaded(save(tmp_path))

    def text(completion):
        ids = policy.tokenizer(completion, add_special_tokens=False).input_ids
        return policy.decode([[*ids, EOS]])[0]

    assert text("<a>7</a>") == "<a>7</a>"
    inside = policy.decode([[*policy.tokenizer("7", add_special_tokens=False).input_ids, EOS, BOS, EOS]])[0]
    assert inside == "7</s><s>"
    form = Format(pattern="<a>[0-9]+</a>")
    assert [form.score([SimpleNamespace(completion=t)])[0] for t in (text("<a>7</a>"), inside)] == [1, 0]


def test_what_is_saved_is_a_plain_folder_with_the_same_logits(tmp_path):
    """Known fault B56, in one process: adapters are merged in, nothing of the wrapping is left in the names."""
    pytest.importorskip("peft")
    policy = loaded(save(tmp_path / "base"), lora={"r": 2, "target_modules": "all-linear"})
    move(policy)
    policy.save(tmp_path / "out")
    ids = torch.tensor([policy.encode(QUESTIONS[0])])
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert {name for name, _ in plain.named_parameters()} == {
        name for name, _ in AutoModelForCausalLM.from_pretrained(tmp_path / "base").named_parameters()
    }
    torch.testing.assert_close(plain(ids).logits, policy.model(ids).logits, rtol=1e-4, atol=1e-4)


def test_dropout_is_off_in_policy_and_reference_whatever_mode_they_are_in(tmp_path):
    """Known fault B59: the checkpoint asks for dropout 0.5."""
    policy = loaded(save(tmp_path, "gpt2"))
    policy.add_reference()
    batch = rollout(policy)
    policy.train()
    assert policy.score(batch).logp.equal(policy.score(batch).logp)
    torch.testing.assert_close(policy.reference_logp(batch), policy.score(batch).logp, rtol=0, atol=1e-6)


def test_the_same_prompt_at_two_places_of_a_step_is_answered_differently(tmp_path):
    """Known fault B62: a draw is keyed by its place in the step over all processes, not by a process's own counter."""
    policy = loaded(save(tmp_path))
    two = rollout(policy, [QUESTIONS[0]] * 2, group_size=8)
    first, second = two.completion_ids[:8].tolist(), two.completion_ids[8:].tolist()
    assert first != second
    alone = rollout(policy, [QUESTIONS[0]], group_size=8, positions=[1])
    width = alone.completion_ids.shape[1]
    assert alone.completion_ids.tolist() == two.completion_ids[8:, :width].tolist()
