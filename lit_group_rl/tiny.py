"""Small character-level policies: random weights for tests and the warm-up, and the embedded default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lit_group_rl.data.tasks import ALPHABET
from lit_group_rl.functional.rng import seeded
from lit_group_rl.policy import HFPolicy
from lit_group_rl.schedules.base import require

PAD, EOS = "<pad>", "<eos>"
TINY_FOLDER = Path(__file__).parent / "assets" / "tiny"


def char_tokenizer() -> Any:
    """One token per character of ALPHABET, then the end token; nothing is added in front of a prompt."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, padding_side="left")


class CharPolicy(HFPolicy):
    """A small Llama with random weights over the characters of the shipped tasks."""

    def __init__(
        self,
        hidden_size: int = 128,
        layers: int = 4,
        heads: int = 4,
        context_tokens: int = 128,
        init_seed: int = 0,
    ) -> None:
        """Weights are drawn from ``init_seed``.

        Args:
            hidden_size: Width of the states; the feed-forward part is three times as wide.
            layers: Decoder layers.
            heads: Attention heads.
            context_tokens: Prompt and completion at most.
            init_seed: Of the random weights.
        """
        super().__init__(path="", chat=False)
        self.hidden_size, self.layers, self.heads = hidden_size, layers, heads
        self.context_tokens, self.init_seed = context_tokens, init_seed
        require(hidden_size % heads == 0, self, "hidden_size", "must be a multiple of heads")

    def _tokenizer(self) -> Any:
        return char_tokenizer()

    def _model(self) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=3 * self.hidden_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            max_position_embeddings=self.context_tokens,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=self.tokenizer.eos_token_id,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        with seeded("init", self.init_seed):
            return LlamaForCausalLM(config).eval()


class TinyPolicy(HFPolicy):
    """The embedded default: a character-level model of under a million parameters, warmed up to a modest accuracy.

    An ordinary Hugging Face folder inside the package, made by ``recipes/sft_warmup.yaml``.
    """

    def __init__(self, lora: dict[str, Any] | None = None, gradient_checkpointing: bool = False) -> None:
        """Trained as a whole, or through an adapter.

        Args:
            lora: Options of ``peft.LoraConfig`` (extra ``lora``).
            gradient_checkpointing: Trade time for activation memory.
        """
        super().__init__(
            path=os.fspath(TINY_FOLDER), chat=False, lora=lora, gradient_checkpointing=gradient_checkpointing
        )
