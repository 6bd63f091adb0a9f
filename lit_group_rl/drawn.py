"""What sampling gives, and the state of its rows while they are drawn, whatever computes the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lit_group_rl.functional.rng import normals, seed_of, uniforms
from lit_group_rl.functional.sampling import choose

BLOCK = 64
"""Random numbers are made for this many tokens at a time."""


@dataclass(frozen=True)
class Drawn:
    """Completions of B rows, right-padded."""

    ids: Tensor
    """[B, T] the end token included."""
    mask: Tensor
    """[B, T] True = drawn token."""
    logp: Tensor
    """[B, T] under the distribution the token was drawn from; 0 off the mask."""
    entropy: Tensor | None
    """[B, T] of that distribution, nats; 0 off the mask.  None: whoever drew did not tell."""
    truncated: Tensor
    """[B] True = the limit came before an end token or stop text."""
    exact: bool
    """The log-probs are those a scoring forward would give (float32 weights, no autocast, no truncation)."""
    written: Tensor | None = None
    """[B, T] True = drawn from the policy; what else is under the mask came from an environment.  None: all of it."""
    turns: list[tuple[str, ...]] | None = None
    """What the policy wrote in each of its turns; None: there was one."""


@dataclass(frozen=True)
class Law:
    """How tokens are drawn from logits."""

    temperature: float
    """0 = the likeliest token, its log-prob at temperature 1."""
    top_p: float = 1.0
    top_k: int = 0
    logit_noise: float = 0.0

    @property
    def greedy(self) -> bool:
        """Nothing is drawn."""
        return self.temperature == 0


@dataclass(frozen=True)
class StopTexts:
    """Texts at which a row ends, beside the end tokens."""

    texts: tuple[str, ...]
    candidates: Tensor
    """Ids of the tokens that can complete one of them: only there a row is decoded."""
    tokenizer: Any

    @staticmethod
    def of(tokenizer: Any, texts: tuple[str, ...], device: torch.device) -> StopTexts:
        """For a tokenizer of transformers.  A special token is none but where it is one of the texts."""
        tokens = tokenizer.batch_decode([[i] for i in range(len(tokenizer))], skip_special_tokens=False)
        special = {i for i in tokenizer.all_special_ids if tokens[i] not in texts}
        # half a character decodes to a replacement mark: the other half may complete it
        last = {text[-1] for text in texts} | {"\ufffd"}
        ids = [i for i, token in enumerate(tokens) if last & set(token) and i not in special]
        return StopTexts(texts, torch.tensor(ids, dtype=torch.long, device=device), tokenizer)

    def end(self, ids: list[int]) -> bool:
        """Whether the row's last token completes a text."""
        # a character is four tokens at most
        tail = self.tokenizer.decode(ids[-4 * max(map(len, self.texts)) :], skip_special_tokens=False)
        return any(text in tail for text in self.texts)


class Rows:
    """All rows of a call: what was drawn, and how to draw on."""

    def __init__(
        self,
        count: int,
        keys: Sequence[int],
        max_new_tokens: int,
        eos_ids: Sequence[int],
        pad_id: int,
        law: Law,
        device: torch.device,
        stops: StopTexts | None = None,
    ) -> None:
        self.stops = stops
        self.law, self.keys, self.limit, self.pad_id = law, list(keys), max_new_tokens, pad_id
        self.stop = torch.tensor(sorted(eos_ids), dtype=torch.long, device=device)
        self.ids = torch.full((count, max_new_tokens), pad_id, dtype=torch.long, device=device)
        self.logp = torch.zeros((count, max_new_tokens), device=device)
        self.entropy = torch.zeros((count, max_new_tokens), device=device)
        self.length = torch.zeros(count, dtype=torch.long, device=device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)
        self._uniforms = torch.empty(count, 0 if law.greedy else BLOCK, dtype=torch.float64, device=device)

    def shift(self, at: Sequence[int], size: int) -> Tensor | None:
        """[n, V] noise on the logits of rows ``at``."""
        if not self.law.logit_noise or self.law.greedy:
            return None
        noise = normals([seed_of(self.keys[i], "logits") for i in at], size).float()
        return (self.law.logit_noise * noise).to(self.ids.device)

    def take(self, at: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the next token of rows ``at`` [n] from logits [n, V], which it overwrites: (tokens, row is over)."""
        uniform = None
        t = self.length[at]
        if not self.law.greedy:
            fresh = at[t % BLOCK == 0]
            if len(fresh):
                self._draw(fresh)
            uniform = self._uniforms[at, t % BLOCK]
        law = self.law
        token, logp, entropy = choose(logits, uniform, temperature=law.temperature, top_p=law.top_p, top_k=law.top_k)
        self.ids[at, t], self.logp[at, t], self.entropy[at, t] = token, logp, entropy
        ended = torch.isin(token, self.stop)
        if self.stops is not None:
            ended = ended | self._at_stop(self.stops, at, token)
        self.ended[at], self.length[at] = ended, t + 1
        return token, ended | (t + 1 >= self.limit)

    def _at_stop(self, stops: StopTexts, at: Tensor, token: Tensor) -> Tensor:
        found = torch.isin(token, stops.candidates)
        for i in found.nonzero().squeeze(1).tolist():
            row = int(at[i])
            found[i] = stops.end(self.ids[row, : int(self.length[row]) + 1].tolist())
        return found

    def _draw(self, fresh: Tensor) -> None:
        starts = self.length[fresh].tolist()
        for start in set(starts):
            some = [r for r, s in zip(fresh.tolist(), starts, strict=True) if s == start]
            self._uniforms[some] = uniforms([self.keys[r] for r in some], start, BLOCK).to(self._uniforms)

    def finished(self, row: int) -> tuple[int, list[int], bool]:
        """Place, tokens and whether it was cut at the limit, of a row that is over."""
        return row, self.ids[row, : int(self.length[row])].tolist(), not bool(self.ended[row])

    def drawn(self, exact: bool) -> Drawn:
        """The result, cut to the longest row."""
        longest = max(1, int(self.length.max()))
        mask = torch.arange(longest, device=self.ids.device)[None] < self.length[:, None]
        cut = (x[:, :longest] for x in (self.ids, self.logp, self.entropy))
        ids, logp, entropy = cut
        return Drawn(ids, mask, logp, entropy, ~self.ended, exact)
