"""The networks that turn a token row into log-odds of 'right'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_group_rl.functional.rng import seeded
from lit_group_rl.generation import generate

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """(ids [n, W], mask [n, W] True = token): the last token of every row stands in the last column."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.arange(width)[None] >= torch.tensor([width - len(row) for row in rows])[:, None]
    return ids.to(device), mask.to(device)


def packed(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices packed under ``max_tokens`` padded tokens, longest first; at least one each."""
    packs: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if packs and lengths[packs[-1][0]] * (len(packs[-1]) + 1) <= max_tokens:
            packs[-1].append(i)
        else:
            packs.append([i])
    return packs


def verdict_log_odds(yes: Tensor, no: Tensor) -> Tensor:
    """log(p_yes / p_no) of a softmax over the two verdict tokens: the difference of their logits.  [n], [n] -> [n]."""
    return yes - no


def _inputs(ids: Tensor, mask: Tensor) -> dict[str, Tensor | bool]:
    attention = mask.long()
    position = (attention.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": attention, "position_ids": position, "use_cache": False}


class TokenJudge(nn.Module):
    """A language model that answers the next token with yes or no."""

    def __init__(self, model: nn.Module, yes: int, no: int) -> None:
        """``yes`` and ``no`` are token ids."""
        super().__init__()
        self.model, self.yes, self.no = model, yes, no

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """[n, W] -> [n]."""
        logits = self.model(**_inputs(ids, mask), logits_to_keep=1).logits[:, -1].float()
        return verdict_log_odds(logits[:, self.yes], logits[:, self.no])


class ScalarJudge(nn.Module):
    """A transformer with a linear head on the state of the last token; it starts undecided."""

    def __init__(self, body: Any) -> None:
        """``body`` is a model of transformers without head."""
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """[n, W] -> [n]."""
        state = self.body(**_inputs(ids, mask)).last_hidden_state[:, -1]
        return self.head(state.to(self.head.weight.dtype)).squeeze(-1).float()


class PooledScorer(nn.Module):
    """Two layers on a mean of hidden states: the light reward model that reads a critique; it starts undecided."""

    def __init__(self, hidden_size: int, width: int = 256) -> None:
        """``hidden_size`` is that of the frozen reader."""
        super().__init__()
        with seeded("critique scorer", hidden_size, width):
            last = nn.Linear(width, 1)
            self.net = nn.Sequential(nn.Linear(hidden_size, width), nn.GELU(), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """[n, d] -> [n]."""
        return self.net(pooled).squeeze(-1)


@torch.no_grad()
def pooled_states(body: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    """Mean of the last hidden states over the tokens.  [n, W] -> [n, d] float32."""
    states = body(**_inputs(ids, mask)).last_hidden_state.float()
    return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def critiques_of(
    writer: PreTrainedModel, rows: Sequence[Sequence[int]], policy: Any, max_new_tokens: int
) -> list[tuple[int, ...]]:
    """Each row followed by what the writer says about it, greedily.  ``policy`` gives the special tokens."""
    drawn = generate(
        writer,
        rows,
        copies=1,
        keys=[0] * len(rows),
        max_new_tokens=max_new_tokens,
        temperature=0.0,
        eos_ids=policy.eos_ids,
        pad_id=policy.pad_id,
        max_rows=policy.decode_rows,
    )
    said = [ids[mask].tolist() for ids, mask in zip(drawn.ids, drawn.mask, strict=True)]
    return [(*row, *more) for row, more in zip(rows, said, strict=True)]
