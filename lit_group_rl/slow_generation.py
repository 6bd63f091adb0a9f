"""Completions through transformers' own ``generate``, for models that our decoding does not serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lit_group_rl.drawn import Rows


class _Chooser(LogitsProcessor):
    """Chooses the tokens by the rows' own law and leaves ``generate`` no other."""

    def __init__(self, rows: Rows, at: Tensor) -> None:
        self.rows, self.at = rows, at
        self.live = torch.ones(len(at), dtype=torch.bool, device=at.device)
        self.shift: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores of which only the chosen token's is finite."""
        if self.shift is None:
            self.shift = self.rows.shift(self.at.tolist(), scores.shape[-1])
        live = self.live.nonzero().squeeze(1)
        logits = scores[live].float()
        token, over = self.rows.take(self.at[live], logits if self.shift is None else logits + self.shift[live])
        chosen = torch.full_like(self.at, self.rows.pad_id)
        chosen[live] = token
        self.live[live[over]] = False
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen[:, None], 0.0)


def by_own_generate(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], copies: int, rows: Rows, max_rows: int
) -> None:
    """Fill ``rows``.  Prompts of equal length go together, as states that run on may not skip padding."""
    device = rows.ids.device
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    per = max(1, max_rows // copies)
    while order:
        some = [i for i in order if len(prompts[i]) == len(prompts[order[0]])][:per]
        order = [i for i in order if i not in some]
        at = torch.tensor([i * copies + j for i in some for j in range(copies)], device=device)
        ids = torch.tensor([list(prompts[i]) for i in some for _ in range(copies)], device=device)
        model.generate(  # type: ignore[operator]  # of a mixin
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=rows.limit,
            eos_token_id=rows.stop.tolist() or None,
            pad_token_id=rows.pad_id,
            repetition_penalty=1.0,
            logits_processor=LogitsProcessorList([_Chooser(rows, at)]),
        )
