"""Run all completions of a micro-batch through a model as one row of tokens, each prompt once and without padding.

    [ prompt 1 | prompt 2 | ... | completion 1 | completion 2 | ... ]      positions go on from the completion's prompt

Everything but attention works token by token and sees that row.  Attention puts the tokens back into rows: prompts
attend to themselves, a completion to its prompt and itself.  The result is that of separate rows beyond rounding.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION = "sdpa_packed"
"""Our attention function among those of transformers: ``sdpa`` unless a packing is given."""


@dataclass(frozen=True)
class Rows:
    """Completions of similar length, whose tokens attend in one call."""

    at: Tensor
    """[b, t] places of their tokens in the row, right-padded with any place."""
    prompt_of: Tensor
    """[b] which of the P prompts."""
    sees: Tensor
    """[b, 1, k t, S + t] additive mask of their tokens over the prompt and themselves, k times: the query heads that
    share a key head attend together."""


@dataclass(frozen=True)
class Packed:
    """N tokens: those of P different prompts, then those of B completions but their last, and where they belong."""

    input_ids: Tensor
    """[1, N]"""
    position_ids: Tensor
    """[1, N]"""
    prompt_at: Tensor
    """[P, S] places of the prompts' tokens in the row, right-padded with any place."""
    completions: list[Rows]
    """Those with more than one token."""
    back: Tensor
    """[N] where a token's result is among those of the prompts and then of each of ``completions``, with padding."""
    predicts: Tensor
    """[B, T] place in the row of the state that predicts the token; 0 off the mask."""


def _places(begins: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(places [rows, longest] from each row's begin on, 0 beyond its length; True = within it)."""
    place = np.arange(lengths.max(initial=0))
    real = place < lengths[:, None]
    return np.where(real, begins[:, None] + place, 0), real


def _similar(lengths: list[int]) -> list[list[int]]:
    """Rows in calls such that padding adds at most about a quarter; rows of length 0 are left out."""
    calls: list[list[int]] = []
    total = 0
    for row in sorted((r for r, n in enumerate(lengths) if n), key=lambda r: -lengths[r]):
        if calls and lengths[calls[-1][0]] * (len(calls[-1]) + 1) <= 1.25 * (total + lengths[row]):
            calls[-1].append(row)
            total += lengths[row]
        else:
            calls.append([row])
            total = lengths[row]
    return calls


def pack(
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    completion_ids: Tensor,
    completion_mask: Tensor,
    group_ids: Tensor | None,
    dtype: torch.dtype,
    heads_per_key: int = 1,
) -> Packed:
    """Shapes as in :meth:`CausalNet.forward`; rows with equal ``group_ids`` [B] have the same prompt."""
    device = prompt_ids.device
    groups = list(range(len(prompt_ids))) if group_ids is None else group_ids.tolist()
    number = {g: i for i, g in enumerate(dict.fromkeys(groups))}
    prompt_of = np.array([number[g] for g in groups])
    first_row = [groups.index(g) for g in number]
    seen = prompt_mask.cpu().numpy()[first_row]
    prompt_lengths, lengths = seen.sum(1), completion_mask.sum(1).cpu().numpy()
    fed = np.maximum(lengths - 1, 0)  # nothing follows the last token
    # where the rows begin: all prompts, then all completions
    ends = np.cumsum(np.concatenate([prompt_lengths, fed]))
    begins = ends - np.concatenate([prompt_lengths, fed])
    prompt_begins, own_begins, total = begins[: len(seen)], begins[len(seen) :], int(ends[-1])
    shared, shared_real = _places(prompt_begins, prompt_lengths)
    place = np.arange(completion_ids.shape[1])
    own_real = place < fed[:, None]
    ids = np.concatenate([prompt_ids.cpu().numpy()[first_row][seen], completion_ids.cpu().numpy()[own_real]])
    behind = prompt_lengths[prompt_of]  # where a completion's positions go on
    positions = np.concatenate(
        [np.broadcast_to(np.arange(shared.shape[1]), shared.shape)[shared_real], (behind[:, None] + place)[own_real]]
    )
    predicts = np.where(place > 0, own_begins[:, None] + place - 1, (prompt_begins[prompt_of] + behind - 1)[:, None])
    predicts = np.where(place < lengths[:, None], predicts, 0)

    def tensor(x: Any) -> Tensor:
        return torch.as_tensor(x, dtype=torch.long, device=device)

    calls, order = [], [shared[shared_real]]
    places, offset = [shared_real.ravel().nonzero()[0]], shared.size
    for some in _similar(fed.tolist()):
        own, own_real = _places(own_begins[some], fed[some])
        prompts_of = prompt_of[some]
        causal = np.tril(np.ones((own.shape[1], own.shape[1]), dtype=bool))
        sees = np.concatenate(
            [
                np.broadcast_to(shared_real[prompts_of][:, None], (*own.shape, shared.shape[1])),
                np.broadcast_to(causal, (len(own), *causal.shape)),
            ],
            axis=2,
        )
        blocked = torch.from_numpy(~np.tile(sees, (1, heads_per_key, 1))).to(device)[:, None]
        additive = torch.zeros(blocked.shape, dtype=dtype, device=device).masked_fill(blocked, torch.finfo(dtype).min)
        calls.append(Rows(tensor(own), tensor(prompts_of), additive))
        order.append(own[own_real])
        places.append(offset + own_real.ravel().nonzero()[0])
        offset += own.size
    back = np.zeros(total, dtype=np.int64)
    back[np.concatenate(order)] = np.concatenate(places)
    return Packed(
        tensor(ids)[None],
        tensor(positions)[None],
        tensor(shared),
        calls,
        tensor(back),
        tensor(predicts),
    )


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: Packed | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of transformers' ``sdpa``, or over packed rows.  [1, H, N, d] -> [1, N, H, d]."""
    if packed is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, softcap=softcap, **kwargs
        )
    if softcap is not None or kwargs.get("sliding_window") is not None or kwargs.get("position_bias") is not None:
        raise ValueError("packed attention knows no caps, windows or biases")
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [N, heads, d]
    heads, width = q.shape[1:]
    sharing = heads // k.shape[1]

    def rows(x: Tensor, at: Tensor) -> Tensor:
        """[N, H, d] -> [rows, H, places, d]."""
        return x.flatten(1).index_select(0, at.flatten()).view(*at.shape, *x.shape[1:]).transpose(1, 2)

    prompt_k, prompt_v = rows(k, packed.prompt_at), rows(v, packed.prompt_at)
    # padding comes last, so a causal mask keeps it from the real tokens
    of_prompts = scaled_dot_product_attention(
        rows(q, packed.prompt_at),
        prompt_k.repeat_interleave(sharing, 1),
        prompt_v.repeat_interleave(sharing, 1),
        is_causal=True,
        scale=scaling,
    )
    out = [of_prompts.transpose(1, 2).reshape(-1, heads * width)]
    for some in packed.completions:
        own_q = rows(q, some.at)
        result = scaled_dot_product_attention(
            own_q.reshape(len(own_q), heads // sharing, -1, width),
            torch.cat([prompt_k.index_select(0, some.prompt_of), rows(k, some.at)], 2),
            torch.cat([prompt_v.index_select(0, some.prompt_of), rows(v, some.at)], 2),
            attn_mask=some.sees,
            scale=scaling,
        )
        out.append(result.reshape(own_q.shape).transpose(1, 2).reshape(-1, heads * width))
    return torch.cat(out).index_select(0, packed.back).view(1, -1, heads, width), None


def embedding_weight(model: PreTrainedModel) -> Tensor:
    """[V, d] of the input embedding."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight


def heads_per_key(model: PreTrainedModel) -> int:
    """Query heads per key head of a model."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    return heads // (getattr(config, "num_key_value_heads", None) or heads)


def use_packing(model: PreTrainedModel) -> None:
    """Make :func:`attend` the attention of a model."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def keep_attention_out_of_compile() -> None:
    """How many calls there are and how long they are changes from micro-batch to micro-batch."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, torch.compiler.disable(attend))


def packed_states(base: nn.Module, packed: Packed) -> Tensor:
    """[N, d] last states of the row's tokens."""
    here = torch.zeros(1, 1, 1, 1, device=packed.back.device)  # a mask of four dimensions is handed through as it is
    return base(
        input_ids=packed.input_ids,
        attention_mask=here,
        position_ids=packed.position_ids,
        use_cache=False,
        packed=packed,
    ).last_hidden_state[0]


@torch.no_grad()
def can_pack(model: PreTrainedModel) -> bool:
    """Whether packed rows give what separate rows give: tried on two completions of one prompt and one of another.

    Sets the model's attention to ours if so.  Models with windowed or linear attention are left out by their
    configuration, as a short try cannot show a window.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or (windowed and not getattr(config, "layer_types", None)):
        return False
    if getattr(config, "_attn_implementation", None) == ATTENTION:
        return True  # a copy of a model that was tried
    if getattr(config, "_attn_implementation", None) != "sdpa":
        return False
    weight = embedding_weight(model)
    if weight.is_meta:
        return False
    prompt = torch.tensor([[0, 1, 2], [2, 0, 1], [0, 1, 2]], device=weight.device)
    answer = torch.tensor([[1, 2, 0], [2, 1, 1], [0, 0, 2]], device=weight.device)
    yes = torch.ones_like(prompt, dtype=torch.bool)
    packed = pack(prompt, yes, answer, yes, torch.tensor([0, 1, 0]), weight.dtype, heads_per_key(model))
    was_training = model.training
    model.eval()
    plain = model.base_model(input_ids=torch.cat([prompt, answer[:, :-1]], 1), use_cache=False).last_hidden_state[:, 2:]
    works = False
    try:
        use_packing(model)
        found = packed_states(model.base_model, packed)[packed.predicts]
        works = same_states(found, plain)
    except (TypeError, ValueError, RuntimeError):
        pass  # a forward that does not hand our arguments on to its attention
    finally:
        model.train(was_training)
        if not works:
            model.set_attn_implementation("sdpa")
            warnings.warn(
                f"{type(model).__name__} gives other states for packed rows than for separate ones, so it is trained "
                "on row by row with padding, which is slower; the result is the same",
                stacklevel=3,
            )
    return works


def same_states(found: Tensor, plain: Tensor) -> bool:
    """Whether states [..., d] are the same beyond rounding, each token's beside its own size.

    Single elements do not tell: those of a pretrained model differ in size by a factor of a hundred.
    """
    loose = 1e-4 if found.dtype == torch.float32 else 5e-2
    found, plain = found.float(), plain.float()
    return bool(((found - plain).norm(dim=-1) <= loose * plain.norm(dim=-1)).all())
