"""One decoding step of Llama-shaped models without the general forward around it.

Calls the model's own layers, so adapters inside them count; plain ones are multiplied by a copy of their weights in
the order that products of few rows are fast with.  Whether a model is of this shape is known by its type; whether the
step gives what the model gives is tried before it is used (``generation.can_decode``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention

from lit_group_rl.cache import RowCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODEL_TYPES = {"llama", "mistral", "qwen2", "qwen3"}
COPY_BYTES = 2**31
"""Models of more bytes are not copied: the host memory is worth more than the time."""


class _Product:
    """Linear layers that read the same input, their outputs side by side.

    On a CPU a few rows times a matrix is up to twice as fast with the matrix stored by input, and one product faster
    than three.  The copy lives as long as the completions of one step are drawn.
    """

    def __init__(self, *layers: nn.Module, copy: bool) -> None:
        self.layers = layers
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        if copy and all(map(_is_plain, layers)):
            linear = cast("tuple[nn.Linear, ...]", layers)
            widths = [m.out_features for m in linear]
            self.weight = torch.empty(linear[0].in_features, sum(widths))
            for part, m in zip(self.weight.split(widths, 1), linear, strict=True):
                part.copy_(m.weight.detach().t())
            if linear[0].bias is not None:
                self.bias = torch.cat([m.bias.detach() for m in linear])

    def __call__(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        if self.weight is None:
            return torch.cat([m(x) for m in self.layers], -1) if len(self.layers) > 1 else self.layers[0](x)
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def onto(self, base: Tensor, x: Tensor) -> Tensor:
        """[n, out] plus the product."""
        if self.weight is None or self.bias is not None:
            return base + self(x)
        return torch.addmm(base, x, self.weight)


def _is_plain(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    w = layer.weight
    return w.device.type == "cpu" and w.dtype == torch.float32 and not isinstance(w, DTensor)


class LlamaStep:
    """Logits of one new token per row."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.base = cast(Any, model.base_model)
        config = self.base.config
        self.kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(self.base.layers)
        copy = sum(p.nbytes for p in model.parameters()) <= COPY_BYTES
        copy = copy and not torch.is_autocast_enabled("cpu")
        self.head = _Product(cast(nn.Module, model.get_output_embeddings()), copy=copy)
        self.layers = [_Layer(layer, copy) for layer in self.base.layers]

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether the model is of the shape."""
        return getattr(model.config, "model_type", "") in MODEL_TYPES and model.base_model is not model

    def __call__(self, token: Tensor, length: Tensor, mask: Any, cache: RowCache) -> Tensor:
        """Tokens [n] behind rows of ``length`` [n] -> logits [n, V]; ``mask`` and ``cache`` as the model takes them."""
        base = self.base
        x = base.embed_tokens(token)
        cos, sin = (c.transpose(0, 1) if c.shape[0] == 1 else c for c in base.rotary_emb(x, length[:, None]))
        for i, (layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            x = layer(x, cos, sin, mask[kind] if isinstance(mask, dict) else mask, cache, i)
        return self.head(_norm(base.norm, x))


class _Layer:
    """A decoder layer for one token per row."""

    def __init__(self, layer: Any, copy: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.layer, self.attention, self.mlp = layer, attention, mlp
        self.qkv = _Product(attention.q_proj, attention.k_proj, attention.v_proj, copy=copy)
        self.out = _Product(attention.o_proj, copy=copy)
        self.gate_up = _Product(mlp.gate_proj, mlp.up_proj, copy=copy)
        self.down = _Product(mlp.down_proj, copy=copy)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: RowCache, index: int) -> Tensor:
        """[n, d] -> [n, d]; ``cos`` and ``sin`` [n, 1, head width]."""
        attention, n = self.attention, len(x)
        heads = self.qkv(_norm(self.layer.input_layernorm, x)).view(n, -1, attention.head_dim)
        groups = attention.num_key_value_groups  # query heads per key head
        keys_at = heads.shape[1] * groups // (groups + 2)
        values_at = keys_at + keys_at // groups
        both = heads[:, :values_at]
        if hasattr(attention, "q_norm"):
            q, k = both[:, :keys_at], both[:, keys_at:]
            both = torch.cat([_norm(attention.q_norm, q), _norm(attention.k_norm, k)], 1)
        first, second = both.chunk(2, -1)
        both = both * cos + torch.cat([-second, first], -1) * sin
        keys, values = cache.update(both[:, keys_at:, None], heads[:, values_at:, None], index)
        seen = scaled_dot_product_attention(
            both[:, :keys_at].reshape(n, keys.shape[1], groups, attention.head_dim),
            keys,
            values,
            attn_mask=mask,
            scale=attention.scaling,
        )
        x = self.out.onto(x, seen.reshape(n, -1))
        gate, up = self.gate_up(_norm(self.layer.post_attention_layernorm, x)).chunk(2, -1)
        return self.down.onto(x, self.mlp.act_fn(gate) * up)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)
