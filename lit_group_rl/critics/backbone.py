"""Transformers for critics and evaluators: the policy's own, copied, or a folder with the same tokenizer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lit_group_rl.types import RecipeError


def body_of(policy: Any, path: str | None, where: str) -> Any:
    """A model without head.  ``path`` None: a copy of the policy's present weights.  ``where`` names the option."""
    if path is None:
        return copy.deepcopy(policy.model.base_model)
    from transformers import AutoModel

    return _load(AutoModel, policy, path, where)


def causal_of(policy: Any, path: str | None, where: str) -> Any:
    """A causal language model.  ``path`` None: a copy of the policy's present weights."""
    if path is None:
        return copy.deepcopy(policy.model)
    from transformers import AutoModelForCausalLM

    return _load(AutoModelForCausalLM, policy, path, where)


def _load(kind: Any, policy: Any, path: str, where: str) -> Any:
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(path)
        for name, value in vars(config).items():
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)  # a judgement must not depend on when it was asked for
        vocabulary = AutoTokenizer.from_pretrained(path).get_vocab()
        model = kind.from_pretrained(path, config=config, dtype=torch.float32)
    except (OSError, ValueError) as e:
        first = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
        raise RecipeError(
            f"{where}: cannot load {path!r}: {first}. "
            "Give a folder with weights and tokenizer, or null to copy the policy"
        ) from e
    if vocabulary != policy.tokenizer.get_vocab():
        raise RecipeError(
            f"{where}: the tokenizer of {path!r} is not the policy's, so it cannot read the policy's tokens. "
            "Use a model of the same family, or null to copy the policy"
        )
    return model


def prefix_states(
    body: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, completion_ids: Tensor, completion_mask: Tensor
) -> Tensor:
    """The last hidden states that predict the completion tokens: state t has seen the prompt and tokens before t.

    [B, S] left-padded and [B, T] right-padded -> [B, T, d].
    """
    attention = torch.cat([prompt_mask, completion_mask[:, :-1]], 1).long()
    states = body(
        input_ids=torch.cat([prompt_ids, completion_ids[:, :-1]], 1),
        attention_mask=attention,
        position_ids=(attention.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
    ).last_hidden_state
    return states[:, prompt_ids.shape[1] - 1 :]
