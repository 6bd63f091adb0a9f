"""A key-value cache whose rows come and go: each has its own length, and the live ones lie together in front."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

STEP = 64
"""The cache grows by this many tokens at a time."""


class _Rows(DynamicLayer):
    """One layer: [rows, heads, places, d], of which the first rows are live.

    Zeros to begin with: what a mask hides still enters the sum, times 0, and must not be NaN.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = keys, values, True
        self.at: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))
        self.width = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Put each row's new token behind its others; all live rows up to the longest."""
        rows, places = self.at
        self.keys[rows, :, places] = key_states[:, :, 0]
        self.values[rows, :, places] = value_states[:, :, 0]
        return self.keys[: len(rows), :, : self.width], self.values[: len(rows), :, : self.width]


class RowCache(Cache):
    """Made from the cache of the first prompts (which it does not keep)."""

    layers: list[Any]
    """Of _Rows."""

    def __init__(self, like: Any, rows: int, width: int) -> None:
        """Room for ``rows`` rows of ``width`` tokens; heads, widths and types are those of the cache ``like``."""
        layers: list[Any] = []
        for layer in like.layers:
            k, v = layer.keys, layer.values
            layers.append(_Rows(*(x.new_zeros(rows, x.shape[1], width, x.shape[3]) for x in (k, v))))
        super().__init__(layers=layers)

    def _tensors(self) -> list[tuple[_Rows, str]]:
        return [(layer, name) for layer in self.layers for name in ("keys", "values")]

    def fill(self, row: int, copies: int, like: Cache, prompt: int, length: int) -> None:
        """Put the last ``length`` places of a left-padded cache's row ``prompt`` into ``copies`` rows from ``row``."""
        for layer, other in zip(self.layers, like.layers, strict=True):
            for name in ("keys", "values"):
                source = getattr(other, name)[prompt : prompt + 1, :, -length:]
                getattr(layer, name)[row : row + copies, :, :length] = source

    def move(self, source: Tensor, target: Tensor, width: int) -> None:
        """Copy rows over others, the first ``width`` places."""
        for layer, name in self._tensors():
            x = getattr(layer, name)
            x[target, :, :width] = x[source, :, :width]

    def resize(self, rows: int, width: int, live: int) -> None:
        """Room for more tokens, and for no more rows than are still needed; keeps the first ``live`` rows."""
        for layer, name in self._tensors():
            x = getattr(layer, name)
            keep = min(width, x.shape[2])
            new = x.new_zeros(rows, x.shape[1], width, x.shape[3])
            new[:live, :, :keep] = x[:live, :, :keep]
            setattr(layer, name, new)

    @property
    def width(self) -> int:
        """Places of a row."""
        return int(self.layers[0].keys.shape[2])

    def expect(self, lengths: Tensor, longest: int) -> None:
        """The next forward brings one token for each of the first rows, which have these lengths [n]."""
        at = torch.arange(len(lengths), device=lengths.device), lengths
        for layer in self.layers:
            layer.at, layer.width = at, longest + 1
