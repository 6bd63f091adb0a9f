"""The work both sides do: models with random weights, prompts, stop rule, reward.  Imports neither trainer.

A model with random weights never favours one stop token, so a set of token ids stops a completion: a constant hazard of
1 / mean_len per token, geometric lengths, cut at ``max_completion``.  Throughput counts completion tokens up to and
including the stop token, never padding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

PAD, EOS = 0, 1
MODELS = {  # hidden, layers, heads, key-value heads, intermediate, vocabulary
    "tiny": (128, 4, 4, 2, 512, 512),  # 1.1 M parameters
    "base": (256, 6, 4, 2, 1024, 4096),  # 7 M
    "medium": (512, 8, 8, 2, 1536, 8192),  # 28 M
    "bigvocab": (96, 2, 4, 2, 384, 151936),  # 15 M, 97 % of them in the (tied) vocabulary matrix
}


@dataclass(frozen=True)
class Workload:
    """One rollout and its updates, called a cycle."""

    model: str = "base"
    prompts: int = 8
    """Distinct prompts per cycle."""
    group: int = 8
    """Completions per prompt."""
    prompt_lo: int = 10
    prompt_hi: int = 60
    max_completion: int = 128
    mean_len: int = 48
    """Of the geometric length before the cut."""
    reward: str = "dense"
    """'dense', or 'sparse': in half of the groups every completion gets the same reward."""
    minibatches: int = 1
    """Optimizer steps per rollout."""
    lr: float = 1e-4
    seed: int = 0
    vocab: int = 0
    """0 = the model's own."""

    @property
    def rows(self) -> int:
        """Completions per cycle."""
        return self.prompts * self.group

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.vocab or MODELS[self.model][5]

    @property
    def stop_ids(self) -> list[int]:
        """Token ids that end a completion."""
        return list(range(EOS, EOS + max(1, round(self.vocabulary / self.mean_len))))


WORKLOADS = {
    "W1": Workload(),
    "W2": Workload(prompts=2, prompt_lo=448, prompt_hi=512),
    "W3": Workload(model="bigvocab", prompts=2, max_completion=64, mean_len=32),
    "W4": Workload(reward="sparse", minibatches=4),
}
_TINY = Workload(model="tiny", prompts=4, max_completion=64, mean_len=32)
CURVES = {
    "group size": {n: replace(_TINY, group=n) for n in (4, 8, 16, 32)},
    "prompt tokens": {n: replace(_TINY, prompt_lo=n, prompt_hi=n) for n in (32, 128, 512, 1024)},
    "vocabulary": {n: replace(_TINY, vocab=n) for n in (1024, 8192, 32768, 151936)},
    "completion tokens": {n: replace(_TINY, max_completion=n, mean_len=n // 2) for n in (32, 64, 128, 256)},
}


def make_model(w: Workload):
    """A Qwen2 with random weights, the same on both sides."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    hidden, layers, heads, kv_heads, intermediate, _ = MODELS[w.model]
    config = Qwen2Config(
        vocab_size=w.vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
    )
    torch.manual_seed(w.seed)
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = w.stop_ids
    model.generation_config.pad_token_id = PAD
    return model


def make_tokenizer(w: Workload):
    """Words t2, t3, ... for the ids."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<eos>": EOS, **{f"t{i}": i for i in range(2, w.vocabulary)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def make_prompts(w: Workload, count: int) -> list[list[int]]:
    """Uneven random prompts without stop ids; the first id of prompt i is i modulo 4 (``reward`` reads it)."""
    rng = random.Random(1000 + w.seed)
    low = len(w.stop_ids) + 2
    prompts = []
    for i in range(count):
        ids = [rng.randrange(low, w.vocabulary) for _ in range(rng.randint(w.prompt_lo, w.prompt_hi))]
        first = ids[0] - ids[0] % 4 + i % 4
        ids[0] = first if low <= first < w.vocabulary else first + 4 if first < low else first - 4
        prompts.append(ids)
    return prompts


def as_text(ids: list[int]) -> str:
    """The tokenizer's text of the ids."""
    return " ".join(f"t{i}" for i in ids)


def reward(w: Workload, prompt_ids: list[int], completion_ids: list[int]) -> float:
    """Cheap, verifiable, the same for every trainer; depends on ids only."""
    if w.reward == "dense":
        return sum(t % 2 == 0 for t in completion_ids) / len(completion_ids)
    # every fourth prompt is too hard (always 0), every fourth too easy (always 1), the others toss a coin
    kind = prompt_ids[0] % 4
    return 0.0 if kind == 0 else 1.0 if kind == 1 else float(completion_ids[0] % 2)
