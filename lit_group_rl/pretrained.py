"""Read tokenizer and weights of a causal language model, and say what is wrong with them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lit_group_rl.functional.rng import seeded
from lit_group_rl.types import RecipeError

PACKAGE_PREFIX = "package:"


@dataclass(frozen=True)
class Pretrained:
    """Where a model lies: a folder, a hub name, or ``package:NAME`` for the files inside an installed package."""

    path: str
    gguf_file: str | None
    revision: str | None
    trust_remote_code: bool

    def tokenizer(self, chat: bool | None) -> Any:
        """With an end token and a token for padding, and with a chat template where ``chat`` asks for it."""
        from transformers import AutoTokenizer

        tokenizer = self._read("tokenizer", lambda: AutoTokenizer.from_pretrained(self._source(), **self._options()))
        if tokenizer.eos_token_id is None:
            raise RecipeError(
                f"model.policy.path: the tokenizer of {self.path!r} has no end token. Set eos_token in its "
                "tokenizer_config.json"
            )
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token_id = tokenizer.eos_token_id  # masks go by position, so sharing the id is harmless
        if chat and not tokenizer.chat_template:
            raise RecipeError(
                f"model.policy.chat: the tokenizer of {self.path!r} has no chat template. Set chat to false, or put "
                "a chat_template into its tokenizer_config.json"
            )
        return tokenizer

    def model(self, dtype: str, attention: str) -> Any:
        """Ready to be scored with: dropout is zero."""
        from transformers import AutoConfig, AutoModelForCausalLM

        def read() -> Any:
            config = AutoConfig.from_pretrained(self._source(), **self._options())
            for name, value in vars(config).items():
                if ("drop" in name) and isinstance(value, float):
                    setattr(config, name, 0.0)
            return AutoModelForCausalLM.from_pretrained(
                self._source(),
                config=config,
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
                **self._options(),
            )

        model = self._read("weights", read).eval()
        return without_marks(model) if self.gguf_file else model

    def check(self, model: Any, tokens: int) -> None:
        """RecipeError where weights are not finite, or fewer than the tokenizer's ``tokens`` have an embedding."""
        for name, tensor in model.named_parameters():
            if not torch.isfinite(tensor).all():
                raise RecipeError(f"model.policy.path: the tensor {name} of {self.path!r} holds NaN or Inf")
        rows = model.get_input_embeddings().weight.shape[0]
        if tokens > rows:
            raise RecipeError(
                f"model.policy.path: the tokenizer of {self.path!r} knows {tokens} tokens, the embedding has {rows} "
                "rows. Use the tokenizer that belongs to the weights, or resize the embedding and save the folder"
            )

    def _source(self) -> str:
        if not self.path.startswith(PACKAGE_PREFIX):
            return self.path
        name = self.path.removeprefix(PACKAGE_PREFIX)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise RecipeError(
                f"model.policy.path: the Python package {name!r} that holds the model is not installed. "
                f"pip install {name.replace('_', '-')} (or the extra that names it, see README)"
            )
        return str(Path(spec.origin).parent)

    def _options(self) -> dict[str, Any]:
        source = self._source()
        options: dict[str, Any] = {"trust_remote_code": self.trust_remote_code}
        if Path(source).exists():
            options["local_files_only"] = True
        if self.revision:
            options["revision"] = self.revision
        if self.gguf_file:
            if importlib.util.find_spec("gguf") is None:
                raise RecipeError("model.policy.gguf_file: reading GGUF needs the package gguf. pip install gguf")
            options["gguf_file"] = self.gguf_file
        return options

    def _read(self, what: str, read: Any) -> Any:
        try:
            return read()
        except (OSError, ValueError, ImportError) as e:
            if self.path.startswith(("/", "./", "../", "~")) and not Path(self.path).is_dir():
                raise RecipeError(f"model.policy.path: there is no folder {self.path!r}. Correct the path") from e
            first = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
            raise RecipeError(f"model.policy.path: cannot load the {what} of {self.path!r}: {first}") from e


def without_marks(model: Any) -> Any:
    """A model read from a quantised file, whose numbers are plain ones since: transformers would refuse to save it."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model


def with_lora(model: Any, lora: dict[str, Any] | None, adapter: str | None) -> Any:
    """The model inside a peft model: with the adapter of a folder, or with a new one of these options."""
    try:
        import peft
    except ImportError as e:
        raise RecipeError("model.policy.lora: needs the package peft. pip install 'lit-group-rl[lora]'") from e
    if adapter is not None:
        wrapped = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    else:
        assert lora is not None
        try:
            with seeded("lora"):  # the same first matrices in every process and every run
                wrapped = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **lora))
        except (TypeError, ValueError) as e:
            names = sorted({n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
            what = str(e).partition(". ")[0].rstrip(".")
            raise RecipeError(f"model.policy.lora: {what}. Linear layers of this model: {', '.join(names)}") from e
    for module in wrapped.modules():
        if isinstance(module, nn.Dropout):  # of lora_dropout, or of the adapter that is gone on from
            module.p = 0.0
    return wrapped
