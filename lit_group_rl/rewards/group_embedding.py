"""A group score from sentence embeddings."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.functional.similarity import cosine_matrix
from lit_group_rl.rewards.group_score import GroupScore
from lit_group_rl.schedules.base import Number, require, require_number
from lit_group_rl.types import RecipeError

KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}
"""Of a sentence-transformers folder; a length has no part in a cosine, so Normalize needs no code."""


@dataclass(frozen=True)
class GroupEmbedding(GroupScore):
    """Agreement with the rest of the group as cosine of sentence embeddings, in [-1, 1].

    Reads a sentence-transformers folder through transformers: the encoder's states, pooled as the folder says (mean
    over tokens, or the first one).  The model is frozen and computes on the CPU unless ``device`` says otherwise.

    Source of such encoders: Sentence-BERT, arXiv:1908.10084; SimCSE, arXiv:2104.08821.
    """

    path: str
    """Folder, hub name, or ``package:NAME`` for the files inside an installed Python package."""
    weight: Number = 0.0
    """Weight in the total; 0 keeps it as a column for other components."""
    max_tokens: int = 128
    """K: tokens of a completion that are read at most."""
    batch_size: int = 64
    """Texts encoded at a time; changes memory and speed only."""
    device: str = "cpu"
    """Where the encoder computes."""
    _loaded: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_number(self, "weight")
        require(self.max_tokens >= 1, self, "max_tokens", "must be at least 1")
        require(self.batch_size >= 1, self, "batch_size", "must be at least 1")

    def similarities(self, groups: Sequence[Sequence[str]]) -> list[Tensor]:
        unique = sorted({text for texts in groups for text in texts}, key=lambda t: (len(t), t))
        place = {text: i for i, text in enumerate(unique)}
        table = self.embed(unique)
        return [cosine_matrix(table[[place[t] for t in texts]]) for texts in groups]

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> Tensor:
        """One embedding per text, [n, d] on the CPU."""
        if not texts:
            return torch.zeros(0, 1)
        self._load()
        tokenizer, model = self._loaded["tokenizer"], self._loaded["model"]
        rows = []
        for s in range(0, len(texts), self.batch_size):
            inputs = tokenizer(
                list(texts[s : s + self.batch_size]),
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(self.device)
            states = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].to(states.dtype)
            pooled = states[:, 0] if self._loaded["cls"] else (states * mask).sum(1) / mask.sum(1).clamp(min=1)
            rows.append(pooled.float().cpu())
        return torch.cat(rows)

    def _load(self) -> None:
        if self._loaded:
            return
        from transformers import AutoModel, AutoTokenizer

        source = self._source()
        try:
            cls = uses_first_token(Path(source))
            tokenizer = AutoTokenizer.from_pretrained(source)
            model = AutoModel.from_pretrained(source).eval().requires_grad_(False).to(self.device)
        except (OSError, ValueError) as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RecipeError(
                f"GroupEmbedding.path: cannot load {self.path!r}: {why}. "
                "Give the folder of a sentence-transformers model"
            ) from error
        self._loaded.update(tokenizer=tokenizer, model=model, cls=cls)

    def _source(self) -> str:
        name = self.path.removeprefix("package:")
        if name == self.path:
            return self.path
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise RecipeError(
                f"GroupEmbedding.path: the Python package {name!r} that holds the model is not installed. "
                f"pip install {name.replace('_', '-')} (extra 'embedding' of lit-group-rl)"
            )
        home = Path(spec.origin).parent
        return str(next((f.parent for f in sorted(home.rglob("modules.json"))), home))


def uses_first_token(folder: Path) -> bool:
    """Whether a sentence-transformers folder pools by its first token; False, so by the mean, if it does not say.

    Raises ValueError for a folder that does more than encode and pool.
    """
    modules, pooling = folder / "modules.json", folder / "1_Pooling" / "config.json"
    if modules.is_file():
        kinds = [m["type"].rsplit(".", 1)[-1] for m in json.loads(modules.read_text(encoding="utf-8"))]
        if unknown := [k for k in kinds if k not in KNOWN_MODULES]:
            raise ValueError(f"it holds a {unknown[0]} module, and only {', '.join(sorted(KNOWN_MODULES))} are read")
    if not pooling.is_file():
        return False
    modes = json.loads(pooling.read_text(encoding="utf-8"))
    used = [k.removeprefix("pooling_mode_") for k, v in modes.items() if k.startswith("pooling_mode_") and v is True]
    if isinstance(modes.get("pooling_mode"), str):  # newer folders
        used = [{"mean": "mean_tokens", "cls": "cls_token"}.get(modes["pooling_mode"], modes["pooling_mode"])]
    if used not in (["mean_tokens"], ["cls_token"]):
        raise ValueError(f"it pools by {used}, and only mean_tokens or cls_token is read")
    return used == ["cls_token"]
