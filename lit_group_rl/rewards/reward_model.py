"""A trained reward model as a reward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from lit_group_rl.rewards.base import Reward
from lit_group_rl.schedules.base import Number, require
from lit_group_rl.types import Problem, Recipe, RecipeError, Sample


@dataclass
class RewardModel(Reward):
    """The logit of a sequence classification model of transformers that has one label, over prompt and completion.

    Prompt and completion go through the model's own tokenizer: through its chat template if it has one (or as told),
    else as the plain text of one after the other.  It is loaded at the first use and never trained.
    """

    path: str
    """Folder or hub name of the model, with its tokenizer."""
    weight: Number = 1.0
    """Weight in the total."""
    solved_at: float = 1.0
    """From this score on a completion counts as solved."""
    range: tuple[float, float] | None = None
    """Smallest and largest score; what lies outside is clamped, with a warning."""
    chat: bool | None = None
    """Put both through the chat template; null: if the tokenizer has one."""
    max_tokens: int = 4096
    """Longer texts lose their beginning, lest the answer go unread."""
    batch_size: int = 16
    """Completions at a time."""
    device: str | None = None
    """Where it runs, e.g. 'cpu' or 'cuda:1'; null: this process's accelerator if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of its weights."""
    _loaded: tuple[Any, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.max_tokens >= 1, self, "max_tokens", "must be at least 1")
        require(self.batch_size >= 1, self, "batch_size", "must be at least 1")

    @torch.no_grad()
    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        model, tokenizer = self._loaded = self._loaded or self._load()
        texts = [self._text(s, tokenizer) for s in samples]
        scores: list[float | None] = []
        for start in range(0, len(texts), self.batch_size):
            # a template has written the special tokens already
            inputs = tokenizer(
                texts[start : start + self.batch_size],
                add_special_tokens=not self._templated(tokenizer),
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            )
            scores += model(**inputs.to(model.device)).logits[:, 0].float().cpu().tolist()
        return scores

    def _templated(self, tokenizer: Any) -> bool:
        return bool(tokenizer.chat_template) if self.chat is None else self.chat

    def _text(self, sample: Sample, tokenizer: Any) -> str:
        prompt = sample.prompt
        if self._templated(tokenizer):
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            messages.append({"role": "assistant", "content": sample.completion})
            return str(tokenizer.apply_chat_template(messages, tokenize=False))
        if not isinstance(prompt, str):
            prompt = "\n".join(message["content"] for message in prompt) + "\n"
        return prompt + sample.completion

    def _config(self) -> Any:
        from transformers import AutoConfig

        if self.path.startswith(("/", "./", "../", "~")) and not Path(self.path).is_dir():
            raise RecipeError(f"{self._place}: there is no folder {self.path!r}. Correct the path")
        try:
            config = AutoConfig.from_pretrained(self.path)
        except (OSError, ValueError) as e:
            raise RecipeError(f"{self._place}: cannot read {self.path!r}: {_first_line(e)}. Give a model folder") from e
        if config.num_labels != 1:
            raise RecipeError(
                f"{self._place}: {self.path!r} has {config.num_labels} labels, and a reward is one number. "
                "Use a model with num_labels 1"
            )
        return config

    def _load(self) -> tuple[Any, Any]:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        config = self._config()
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.path, truncation_side="left")
            model, told = AutoModelForSequenceClassification.from_pretrained(
                self.path, config=config, dtype=getattr(torch, self.dtype), output_loading_info=True
            )
        except (OSError, ValueError) as e:
            raise RecipeError(f"{self._place}: cannot load {self.path!r}: {_first_line(e)}") from e
        if told["missing_keys"]:
            missing = ", ".join(sorted(told["missing_keys"])[:3])
            raise RecipeError(
                f"{self._place}: {self.path!r} lacks {missing}, so its scores would be random. "
                "Use a trained sequence classification model"
            )
        self._set_padding(model, tokenizer)
        if self.chat and not tokenizer.chat_template:
            raise RecipeError(f"{self._place}: the tokenizer of {self.path!r} has no chat template. Set chat to false")
        return model.to(self.device or default_device()).eval(), tokenizer

    def _set_padding(self, model: Any, tokenizer: Any) -> None:
        """Such a model reads the state of the last token that is no padding, so it must know the padding."""
        if tokenizer.pad_token_id is None:
            if tokenizer.eos_token is None:
                raise RecipeError(
                    f"{self._place}: the tokenizer of {self.path!r} has neither a pad nor an end token, so completions "
                    "cannot be scored together. Set pad_token in its tokenizer_config.json"
                )
            tokenizer.pad_token = tokenizer.eos_token
        model.config.pad_token_id = tokenizer.pad_token_id

    @property
    def _place(self) -> str:
        return "model.rewards: RewardModel.path"

    def checks(self, recipe: Recipe) -> Iterable[Problem]:
        try:
            self._config()
        except RecipeError as e:
            message, _, fix = str(e).removeprefix(f"{self._place}: ").rpartition(". ")
            yield Problem(f"{recipe.place(self)}.path", message, fix)


def default_device() -> torch.device:
    """This process's accelerator, else the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
