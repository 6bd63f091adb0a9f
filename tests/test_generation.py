"""Generation against transformers' own, and independence of the batch."""

import itertools
import warnings
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lit_group_rl.functional.rng import seeded
from lit_group_rl.generation import _ModelStep, can_decode, generate
from lit_group_rl.llama_step import LlamaStep
from lit_group_rl.samplers.batch import build_batch
from lit_group_rl.scoring import CausalNet
from lit_group_rl.types import Prompt, RolloutBatch

SMALL = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]


def llama():
    return LlamaForCausalLM(LlamaConfig(**SMALL))


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True))


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8))


def gemma2():  # caps its logits, so the head is more than one matrix product, and uses a sliding window of 4
    return Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, sliding_window=4, attn_implementation="eager"))


def gpt2():  # learned absolute positions: padding must not shift them
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=1)
    )


def neox():
    names = {k: v for k, v in SMALL.items() if k not in ("num_key_value_heads", "pad_token_id")}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**names))


@pytest.fixture(params=[llama, qwen2, qwen3, gemma2, gpt2, neox], ids=lambda f: f.__name__)
def model(request):
    with seeded("test weights"):
        net = request.param().eval()
    for p in net.parameters():  # random weights of a fresh model hardly differ between tokens
        p.data *= 3
    return net


def run(model, prompts, **options):
    defaults = {"copies": 1, "max_new_tokens": 8, "temperature": 0.0, "eos_ids": [1], "pad_id": 0}
    options = defaults | options
    options.setdefault("keys", list(range(len(prompts) * options["copies"])))
    return generate(model, prompts, **options)


def test_greedy_equals_generate_of_transformers_row_by_row(model):
    drawn = run(model, PROMPTS)
    for i, prompt in enumerate(PROMPTS):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=0
        )[0, len(prompt) :]
        got = drawn.ids[i][drawn.mask[i]]
        assert got.tolist() == expected[: len(got)].tolist()
        assert len(got) == len(expected)


def test_sampled_logprobs_equal_a_plain_forward(model):
    drawn = run(model, PROMPTS, copies=4, temperature=0.7)
    assert drawn.exact
    for row in range(12):
        prompt, ids = PROMPTS[row // 4], drawn.ids[row][drawn.mask[row]]
        full = torch.cat([torch.tensor(prompt), ids])[None]
        logits = model(input_ids=full).logits[0, len(prompt) - 1 : -1] / 0.7
        expected = logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
        torch.testing.assert_close(drawn.logp[row][drawn.mask[row]], expected, atol=1e-5, rtol=0)
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        torch.testing.assert_close(drawn.entropy[row][drawn.mask[row]], entropy, atol=1e-5, rtol=0)


def test_scoring_equals_a_plain_forward_with_padding_on_both_sides(model):
    drawn = run(model, PROMPTS, copies=2, temperature=1.0)
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS for _ in range(2)])
    mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in PROMPTS for _ in range(2)])
    scores = CausalNet(model)(ids, mask, drawn.ids, drawn.mask, entropy=True)
    torch.testing.assert_close(scores.logp, drawn.logp, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.entropy, drawn.entropy, atol=1e-5, rtol=0)
    assert (scores.logp[~drawn.mask] == 0).all()


def test_packed_completions_score_as_separate_rows_do_and_give_the_same_gradient(model):
    net = CausalNet(model)
    drawn = run(model, PROMPTS, copies=4, temperature=1.0)
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS for _ in range(4)])
    mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in PROMPTS for _ in range(4)])
    groups = torch.arange(3).repeat_interleave(4)
    shuffle = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    results = []
    for group_ids in (None, groups):
        order = shuffle if group_ids is not None else torch.arange(12)
        model.zero_grad()
        arguments = [x[order] for x in (ids, mask, drawn.ids, drawn.mask)]
        scores = net(*arguments, None if group_ids is None else group_ids[order], temperature=0.7, entropy=True)
        back = order.argsort()
        weight = torch.linspace(-1, 1, drawn.ids.numel()).view(drawn.ids.shape)[order]
        (weight * scores.logp + 0.1 * weight * scores.entropy).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        results.append((scores.logp[back].detach(), scores.entropy[back].detach(), gradient))
    for plain, packed in zip(*results, strict=True):
        torch.testing.assert_close(packed, plain, atol=1e-5 * max(1.0, float(plain.abs().max())), rtol=1e-4)


def test_windows_are_not_packed():
    assert not CausalNet(gemma2()).can_pack
    assert all(CausalNet(make()).can_pack for make in (llama, qwen2, qwen3, gpt2, neox))


def test_a_head_that_caps_its_logits_is_not_taken_for_a_matrix_product():
    assert not CausalNet(gemma2()).simple_head
    assert all(CausalNet(make()).simple_head for make in (llama, qwen2, qwen3, gpt2, neox))


def test_a_completion_does_not_depend_on_its_batch(model):
    keys = list(range(100, 112))
    together = run(model, PROMPTS, copies=4, keys=keys, temperature=1.0)
    in_parts = run(model, PROMPTS, copies=4, keys=keys, temperature=1.0, max_rows=4)
    alone = run(model, PROMPTS[1:2], copies=4, keys=keys[4:8], temperature=1.0)
    assert torch.equal(together.ids, in_parts.ids)
    width = alone.ids.shape[1]
    assert torch.equal(together.ids[4:8][together.mask[4:8]], alone.ids[alone.mask])
    assert not together.mask[4:8, width:].any()


def scripted(*sequences):
    """A Llama that says each sequence: layers add nothing, and the head maps every token to its successor."""
    net = LlamaForCausalLM(LlamaConfig(**(SMALL | {"vocab_size": 16, "hidden_size": 16}), tie_word_embeddings=False))
    for name, p in net.named_parameters():
        p.data.zero_() if "layers" in name else p.data.fill_(1.0)
    net.model.embed_tokens.weight.data = torch.eye(16)
    net.lm_head.weight.data.zero_()
    for sequence in sequences:
        for token, follower in itertools.pairwise(sequence):
            net.lm_head.weight.data[follower, token] = 50.0
    return net


@pytest.mark.parametrize("max_rows", [1, 2, 512])
def test_several_end_tokens_and_the_limit(max_rows):
    """Known fault B40, B30: ends {2, 3}; a row that meets the limit keeps its last token and is truncated."""
    net = scripted([4, 5, 3, 9], [6, 7, 8, 9, 9], [11, 2, 9])
    drawn = run(net, [[4], [6], [11]], max_new_tokens=3, eos_ids=[2, 3], temperature=0.0, max_rows=max_rows)
    assert drawn.ids.tolist() == [[5, 3, 0], [7, 8, 9], [2, 0, 0]]
    assert drawn.mask.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert drawn.truncated.tolist() == [False, True, False]


def test_nothing_of_the_checkpoints_generation_config_filters():
    """Known fault B37: a zero head is uniform over 100 tokens; its saved top_k 3 must not count."""
    net = Qwen2ForCausalLM(Qwen2Config(**(SMALL | {"vocab_size": 100}), tie_word_embeddings=False))
    net.lm_head.weight.data.zero_()
    net.generation_config.top_k = 3
    drawn = run(net, [[5]], copies=4096, max_new_tokens=1, temperature=1.0, eos_ids=[], max_rows=4096)
    assert len(drawn.ids.unique()) == 100
    torch.testing.assert_close(drawn.logp[0, 0], torch.tensor(-4.60517), atol=1e-5, rtol=0)  # -log(100)


def test_waiting_prompts_take_the_room_of_finished_ones():
    """Four rows of lengths 1, 6, 1, 1 in two slots: the third starts while the second runs.

    Forwards of one token: with the second alive it needs 5 after its first token, and all others fit beside it.
    """
    net = scripted([4, 2], [6, 7, 8, 9, 10, 11, 2], [13, 2], [14, 2])
    widths = []
    net.lm_head.register_forward_hook(lambda m, args, out: widths.append(out.numel() // 16))
    assert can_decode(net)
    widths.clear()
    drawn = run(net, [[4], [6], [13], [14]], eos_ids=[2], max_rows=2)
    assert drawn.mask.sum(1).tolist() == [1, 6, 1, 1]
    assert drawn.ids[1].tolist() == [7, 8, 9, 10, 11, 2]
    # prompts 1 and 2 together, 3 and 4 each into the slot that the one before left; then the second row alone
    assert widths == [2, 1, 1, *[1] * 5]


def test_the_short_step_gives_what_the_whole_forward_gives():
    for make in (llama, qwen2, qwen3):
        net = make().eval()
        assert can_decode(net)
        assert net._lit_group_rl_step is LlamaStep
        before = run(net, PROMPTS, copies=2, temperature=1.0)
        net._lit_group_rl_step = _ModelStep
        whole = run(net, PROMPTS, copies=2, temperature=1.0)
        assert torch.equal(before.ids, whole.ids)
        torch.testing.assert_close(before.logp, whole.logp, atol=1e-5, rtol=0)


def test_the_copied_weights_are_those_of_the_moment():
    net = llama().eval()
    run(net, PROMPTS, temperature=1.0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    after = run(net, PROMPTS, temperature=1.0)
    net._lit_group_rl_step = _ModelStep
    torch.testing.assert_close(after.logp, run(net, PROMPTS, temperature=1.0).logp, atol=1e-5, rtol=0)


def test_a_layer_that_is_more_than_its_weights_is_called():
    net = llama().eval()
    seen = []
    net.model.layers[1].mlp.down_proj.register_forward_hook(lambda module, args, out: seen.append(1) or out + 1)
    assert can_decode(net)
    assert net._lit_group_rl_step is LlamaStep
    seen.clear()
    before = run(net, PROMPTS, copies=2, temperature=1.0)
    assert len(seen) > 2
    net._lit_group_rl_step = _ModelStep
    torch.testing.assert_close(before.logp, run(net, PROMPTS, copies=2, temperature=1.0).logp, atol=1e-5, rtol=0)


def test_a_window_of_every_layer_is_kept():
    with seeded("test weights"):
        net = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4)).eval()
    for p in net.parameters():
        p.data *= 3
    assert can_decode(net)
    test_greedy_equals_generate_of_transformers_row_by_row(net)
    test_sampled_logprobs_equal_a_plain_forward(net)


def test_a_model_without_key_value_cache_draws_by_its_own_generate_and_says_so_once():
    with seeded("test weights"):
        net = MambaForCausalLM(
            MambaConfig(
                vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2, eos_token_id=1, pad_token_id=0
            )
        ).eval()
    for p in net.parameters():
        p.data *= 2
    with pytest.warns(UserWarning, match="MambaForCausalLM keeps no plain key-value cache"):
        drawn = run(net, PROMPTS, copies=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        sampled = run(net, PROMPTS, copies=2, temperature=0.7)
    for row in range(6):
        prompt = PROMPTS[row // 2]
        expected = net.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=0
        )[0, len(prompt) :]
        assert drawn.ids[row][drawn.mask[row]].tolist() == expected.tolist()
        ids = sampled.ids[row][sampled.mask[row]]
        logits = net(torch.cat([torch.tensor(prompt), ids])[None]).logits[0, len(prompt) - 1 : -1] / 0.7
        expected = logits.log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
        torch.testing.assert_close(sampled.logp[row][sampled.mask[row]], expected, atol=1e-5, rtol=0)


def test_the_mask_is_of_positions_not_of_end_tokens():
    """Known fault B08: a row without an end token is not continued by its padding, whatever it is put beside."""
    net = scripted([4, 5, 6, 7, 8, 9], [11, 12, 2])

    def batch_of(prompts, limit):
        drawn = run(net, prompts, max_new_tokens=limit, eos_ids=[2], temperature=0.0)
        rows = torch.arange(len(prompts))
        return build_batch(
            SimpleNamespace(pad_id=0, decode=lambda rows: [""] * len(rows)),
            prompts=[Prompt("")] * len(prompts),
            prompt_ids=prompts,
            completion_ids=drawn.ids,
            completion_mask=drawn.mask,
            truncated=drawn.truncated,
            behaviour_logp=drawn.logp,
            group_ids=rows,
            members=rows * 0,
            temperature=1.0,
            exact_logp=True,
        )

    both = RolloutBatch.cat([batch_of([[4]], 3), batch_of([[4], [11]], 5)])
    assert both.completion_ids.tolist() == [[5, 6, 7, 0, 0], [5, 6, 7, 8, 9], [12, 2, 0, 0, 0]]
    assert both.completion_mask.long().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]
    assert torch.equal(both.mask, both.completion_mask)
    assert both.truncated.tolist() == [True, True, False]
