"""Log-probabilities of given completions under a causal language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_group_rl.functional.logprobs import head_logprobs, logprobs_from_logits
from lit_group_rl.packing import (
    can_pack,
    embedding_weight,
    heads_per_key,
    keep_attention_out_of_compile,
    pack,
    packed_states,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TokenScores:
    """Per completion token, 0 off the mask."""

    logp: Tensor
    """[B, T]"""
    entropy: Tensor | None = None
    """[B, T] nats"""
    hidden: Tensor | None = None
    """[B, T, d] the state that predicts the token: a function of the prompt and the tokens before it only."""


class CausalNet(nn.Module):
    """A causal language model of transformers with one entry point, so that sharding sees every training forward.

    Only the positions that predict completion tokens go through the head, the logits of the whole batch are never held
    at once, and a prompt is computed once for several of its completions.  Models whose head does more than one matrix
    product (soft caps, scaling), or whose attention takes no mask of ours, go the plain way.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.simple_head = _head_is_linear(model)
        self.can_pack = self.simple_head and can_pack(model)
        self._recomputed = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]

    def compile_layers(self) -> None:
        """Let torch.compile fuse what stands between the attentions; these stay as they are, their shapes vary."""
        if self.can_pack:
            keep_attention_out_of_compile()
        names = set(getattr(self.model, "_no_split_modules", None) or ())
        for module in self.model.modules():
            if type(module).__name__ in names:
                module.compile(dynamic=True)

    def forward(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        group_ids: Tensor | None = None,
        *,
        scored: Tensor | None = None,
        temperature: float = 1.0,
        entropy: bool = False,
        hidden: bool = False,
    ) -> TokenScores:
        """Scores of every completion token.  [B, S] left-padded and [B, T] right-padded -> TokenScores [B, T].

        Rows with equal ``group_ids`` [B] have the same prompt; None: nothing is known of that.  ``scored`` [B, T], a
        part of ``completion_mask``: only these tokens go through the head, the others have 0 and no gradient.
        """
        wanted = completion_mask if scored is None else scored
        for layer in self._recomputed:  # transformers does it in training mode only, and dropout is off anyway
            layer.training = torch.is_grad_enabled()
        chosen = completion_ids[wanted]
        states = None
        if self.simple_head:
            states, at = self._states(prompt_ids, prompt_mask, completion_ids, completion_mask, group_ids)
            head = self.model.get_output_embeddings()
            logp, ent = head_logprobs(
                states[at[wanted]], head.weight, head.bias, chosen, temperature=temperature, entropy=entropy
            )
        else:
            inputs = _plain(prompt_ids, prompt_mask, completion_ids, completion_mask)
            logits = self.model(**inputs, logits_to_keep=completion_ids.shape[1]).logits[wanted]
            logp, ent = logprobs_from_logits(logits.float() / temperature, chosen, entropy=entropy)
            if hidden:
                states, at = self._states(prompt_ids, prompt_mask, completion_ids, completion_mask, None)
        return TokenScores(
            _scatter(logp, wanted),
            None if ent is None else _scatter(ent, wanted),
            states[at] if hidden and states is not None else None,
        )

    def _states(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        group_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Last states [N, d] and which of them predicts each completion token [B, T]."""
        if self.can_pack:
            dtype = embedding_weight(self.model).dtype
            packed = pack(
                prompt_ids, prompt_mask, completion_ids, completion_mask, group_ids, dtype, heads_per_key(self.model)
            )
            return packed_states(self.model.base_model, packed), packed.predicts
        inputs = _plain(prompt_ids, prompt_mask, completion_ids, completion_mask)
        states = self.model.base_model(**inputs).last_hidden_state
        b, w = states.shape[:2]
        columns = torch.arange(prompt_ids.shape[1] - 1, w, device=states.device)
        return states.flatten(0, 1), torch.arange(b, device=states.device)[:, None] * w + columns


def _plain(prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor) -> dict[str, Any]:
    """One row per completion; nothing follows its last token."""
    attention = torch.cat([prompt_mask, completion_mask[:, :-1]], 1).long()
    return {
        "input_ids": torch.cat([prompt_ids, completion_ids[:, :-1]], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "use_cache": False,
    }


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


@torch.no_grad()
def _head_is_linear(model: PreTrainedModel) -> bool:
    """Whether the model's logits are its head's output and nothing more, applied to the base model's last state.

    Found by putting a probe in place of the head's output: caps and scales behind the head would change it.
    """
    head = model.get_output_embeddings()
    if head is None or type(head) is not nn.Linear or model.base_model is model:
        return False
    seen: list[Tensor] = []

    def probe(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.append(inputs[0])
        return torch.linspace(-100, 100, output.numel(), device=output.device).view(output.shape).to(output.dtype)

    ids = torch.tensor([[0, 1, 2]], device=head.weight.device)
    was_training = model.training
    model.eval()
    handle = head.register_forward_hook(probe)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    model.train(was_training)
    untouched = torch.allclose(logits.float(), probe(head, (states,), logits).float(), rtol=1e-5)
    return untouched and torch.allclose(seen[0].float(), states.float(), rtol=1e-4, atol=1e-5)
