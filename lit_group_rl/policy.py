"""The model that is trained: any causal language model of transformers, with its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jinja2 import TemplateError
from torch import Tensor, nn

from lit_group_rl.drawn import Drawn, StopTexts
from lit_group_rl.generation import generate
from lit_group_rl.pretrained import Pretrained, with_lora
from lit_group_rl.scoring import CausalNet, TokenScores
from lit_group_rl.types import Component, Problem, Prompt, Recipe, RecipeError, RolloutBatch, Sample


class HFPolicy(nn.Module, Component):
    """A causal language model folder, GGUF file or hub name, loaded by transformers.

    Dropout is set to zero: the ratio of the first update is then exactly 1, and old log-probs mean what they say.
    """

    def __init__(
        self,
        path: str,
        gguf_file: str | None = None,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa",
        gradient_checkpointing: bool = False,
        chat: bool | None = None,
        system_prompt: str | None = None,
        lora: dict[str, Any] | None = None,
        adapter: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        decode_rows: int = 512,
        compile: bool = False,
    ) -> None:
        """Nothing is read before :meth:`load`.

        Args:
            path: Folder, hub name, or ``package:NAME`` for the files inside an installed Python package.
            gguf_file: File name inside ``path`` when the weights are in GGUF form.
            dtype: Of the weights in memory; train in float32 and let ``trainer.precision`` autocast.
            attention: Attention implementation of transformers.
            gradient_checkpointing: Trade time for activation memory.
            chat: Put the prompt through the chat template; null: when the tokenizer has one.
            system_prompt: First message of the chat.
            lora: Options of ``peft.LoraConfig`` (extra ``lora``), e.g. {r: 16, target_modules: all-linear}.
            adapter: Folder of a trained LoRA adapter to go on from; the reference is then that adapter.
            revision: Branch, tag or commit on the hub.
            decode_rows: Completions decoded at a time; changes memory and speed, never the result.
            compile: Compile the decoder layers with torch.compile for scoring and updates (needs a C++ compiler).
            trust_remote_code: Run Python code that comes with the model. Only for models you would install.
        """
        super().__init__()
        self.path, self.gguf_file, self.dtype, self.attention = path, gguf_file, dtype, attention
        self.gradient_checkpointing, self.chat, self.system_prompt = gradient_checkpointing, chat, system_prompt
        self.lora, self.adapter, self.revision, self.trust_remote_code = lora, adapter, revision, trust_remote_code
        self.decode_rows, self.compile_layers = decode_rows, compile
        self.net: CausalNet | None = None
        self.reference: CausalNet | None = None
        self.tokenizer: Any = None
        self._peft: Any = None
        self._encoded: dict[str, list[int]] = {}
        self.prompt_limit: int | None = None
        """Tokens of a prompt that are kept, the last ones and a start token; None: all."""
        self._stops: dict[tuple[str, ...], StopTexts] = {}
        self.on_completion: Callable[[Sample], None] | None = None
        """Who wants to know of a completion while others are still being drawn."""

    # ---- loading

    def load_tokenizer(self) -> None:
        """Read the tokenizer alone; :meth:`load` does it too."""
        if self.tokenizer is None:
            self.tokenizer = self._tokenizer()

    def load(self) -> None:
        """Read tokenizer and weights; the second call does nothing."""
        if self.net is not None:
            return
        self.load_tokenizer()
        model = self._model()
        self._files.check(model, len(self.tokenizer))
        if self.lora is not None or self.adapter is not None:
            self._peft = with_lora(model, self.lora, self.adapter)
            model = self._peft.get_base_model()
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            model.enable_input_require_grads()
        self.net = CausalNet(model)
        if self.compile_layers:
            self.net.compile_layers()

    def add_reference(self) -> None:
        """Freeze a copy of the present weights as the reference; under LoRA the base with the adapter as loaded."""
        if self.reference is None and not (self._peft is not None and self.adapter is None):
            assert self.net is not None
            self.reference = copy.deepcopy(self.net).requires_grad_(False)

    def reference_weights(self) -> dict[str, Tensor]:
        """The frozen weights that ``reference_logp`` uses."""
        assert self.net is not None
        if self.reference is not None:
            return dict(self.reference.named_parameters())
        return {n: p for n, p in self.net.named_parameters() if not p.requires_grad}

    @property
    def _files(self) -> Pretrained:
        return Pretrained(self.path, self.gguf_file, self.revision, self.trust_remote_code)

    def _tokenizer(self) -> Any:
        return self._files.tokenizer(self.chat)

    def _model(self) -> Any:
        return self._files.model(self.dtype, self.attention)

    # ---- tokens

    @property
    def model(self) -> Any:
        """The model of transformers."""
        assert self.net is not None, "the policy is not loaded"
        return self.net.model

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def pad_id(self) -> int:
        """Token that fills unused places; never looked at."""
        return int(self.tokenizer.pad_token_id)

    @property
    def eos_ids(self) -> list[int]:
        """All end tokens that tokenizer and model declare."""
        found = {int(self.tokenizer.eos_token_id)}
        declared = None if self.net is None else getattr(self.model.generation_config, "eos_token_id", None)
        if declared is not None:
            found |= {int(i) for i in (declared if isinstance(declared, list) else [declared])}
        return sorted(found)

    @property
    def context_length(self) -> int:
        """Prompt and completion tokens at most."""
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 1 << 30)

    @property
    def packs(self) -> bool:
        """Scoring computes a prompt once for all its completions and pads nothing."""
        assert self.net is not None, "the policy is not loaded"
        return self.net.can_pack

    @property
    def hidden_width(self) -> int:
        """d, the width of the state that predicts a token."""
        return int(self.model.config.hidden_size)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt: through the chat template, or as plain text.  Exactly one start token."""
        key = repr(prompt.text)
        if key not in self._encoded:
            self._encoded[key] = self._encode(prompt)
        ids = self._encoded[key]
        if self.prompt_limit is None or len(ids) <= self.prompt_limit:
            return ids
        start = ids[:1] if ids[0] == self.tokenizer.bos_token_id else []
        return [*start, *ids[len(ids) - self.prompt_limit + len(start) :]]

    def _encode(self, prompt: Prompt) -> list[int]:
        messages = prompt.text
        chat = self.chat if self.chat is not None else bool(self.tokenizer.chat_template)
        if isinstance(messages, str):
            if not chat:
                return self._nonempty(self.tokenizer(messages).input_ids, prompt)
            messages = [{"role": "user", "content": messages}]
        elif not chat:
            raise RecipeError(
                f"data: {prompt.place or 'a prompt'} holds chat messages, but the tokenizer has no chat template (or "
                "model.policy.chat is false). Give plain strings, or a tokenizer with a chat template"
            )
        if self.system_prompt is not None and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self.system_prompt}, *messages]
        try:
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as e:
            roles = ", ".join(m["role"] for m in messages)
            raise RecipeError(
                f"data: the chat template of {self.path!r} does not take {prompt.place or 'a prompt'} with the roles "
                f"{roles}: {e}. Change these messages, or set model.policy.system_prompt to null if it adds one"
            ) from e
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        bos = self.tokenizer.bos_token_id
        plain = self.tokenizer("a").input_ids
        if bos is not None and plain and plain[0] == bos and ids[:1] != [bos]:
            ids = [bos, *ids]  # the tokenizer would start every text so, the template did not
        return self._nonempty(ids, prompt)

    @staticmethod
    def _nonempty(ids: list[int], prompt: Prompt) -> list[int]:
        if not ids:
            raise RecipeError(f"data: {prompt.place or 'a prompt'} is empty: it has no token to go on from")
        return list(ids)

    def encode_answer(self, answer: str) -> list[int]:
        """Token ids of a reference answer with the end token."""
        return [*self.tokenizer(answer, add_special_tokens=False).input_ids, int(self.tokenizer.eos_token_id)]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """Texts without the end tokens at their end; a special token in the middle stays visible."""
        ends = set(self.eos_ids)
        trimmed = []
        for row in rows:
            n = len(row)
            while n and row[n - 1] in ends:
                n -= 1
            trimmed.append(np.array(row[:n], dtype=np.int64))  # lists are looked at element by element
        return list(self.tokenizer.batch_decode(trimmed, skip_special_tokens=False))

    # ---- sampling and scoring

    def generate(self, prompts: Sequence[Sequence[int]], *, stops: tuple[str, ...] = (), **options: Any) -> Drawn:
        """Completions of token-id prompts; see :func:`lit_group_rl.generation.generate`."""
        if stops and stops not in self._stops:
            self._stops[stops] = StopTexts.of(self.tokenizer, stops, self.device)
        return generate(
            self.model,
            prompts,
            eos_ids=self.eos_ids,
            pad_id=self.pad_id,
            max_rows=self.decode_rows,
            stops=self._stops.get(stops),
            **options,
        )

    def score(self, batch: RolloutBatch, *, entropy: bool = False, hidden: bool = False) -> TokenScores:
        """Log-probs of the batch's completions under the policy, at the batch's temperature."""
        assert self.net is not None
        return _score(self.net, batch, entropy, hidden)

    @torch.no_grad()
    def reference_logp(self, batch: RolloutBatch) -> Tensor:
        """Log-probs under the frozen reference.  [B, T]"""
        if self.reference is not None:
            return _score(self.reference, batch, False, False).logp
        assert self._peft is not None
        assert self.net is not None
        with self._peft.disable_adapter():
            return _score(self.net, batch, False, False).logp

    # ---- leaving

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """A plain Hugging Face folder: safetensors weights, configuration, tokenizer; LoRA merged in.

        ``state`` are gathered weights of :attr:`net` for a sharded policy.
        """
        model = self.model
        if self._peft is not None:
            model = copy.deepcopy(self._peft).merge_and_unload()
            state = None
        if state is not None:
            state = {k.removeprefix("model."): v for k, v in state.items()}
        model.save_pretrained(folder, state_dict=state, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)

    def save_adapter(self, folder: Path) -> None:
        """The LoRA weights alone, as peft reads them, with the tokenizer."""
        if self._peft is None:
            raise RecipeError("export: the run trained all weights, there is no adapter. Leave out --adapter")
        self._peft.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save_pretrained(folder)

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        """A warning where code of the model will be run, or an option has no effect."""
        if self.lora is not None and self.adapter is not None:
            yield Problem(
                "model.policy.lora",
                "has no effect beside model.policy.adapter, which brings its own rank and layers",
                "Set one of the two to null",
                warning=True,
            )
        if self.trust_remote_code:
            yield Problem(
                "model.policy.trust_remote_code",
                "Python code that comes with the model will be run",
                "Leave it false unless you trust the source",
                warning=True,
            )


def _score(net: CausalNet, batch: RolloutBatch, entropy: bool, hidden: bool) -> TokenScores:
    return net(
        batch.prompt_ids,
        batch.prompt_mask,
        batch.completion_ids,
        batch.completion_mask,
        batch.group_ids,
        scored=batch.written,
        temperature=batch.temperature,
        entropy=entropy,
        hidden=hidden,
    )
