"""Means, sums and maxima collected over micro-batches and processes, reduced once a step."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_group_rl.functional.collectives import all_max, all_objects, all_sum, world_size
from lit_group_rl.functional.masked import masked_sum


class MetricBag:
    """Numbers to log.  Nothing leaves the device, and nothing is reduced over processes, until :meth:`reduce`."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float | Tensor]] = {}
        self._maxima: dict[str, float | Tensor] = {}
        self._values: dict[str, tuple[float, list[Tensor]]] = {}

    def mean(self, tag: str, total: float | Tensor, count: float | Tensor = 1.0) -> None:
        """Add ``total`` over ``count`` things to a mean; a tag whose count stays 0 is not logged."""
        total, count = _plain(total), _plain(count)
        if tag in self._sums:
            self._sums[tag][0] = self._sums[tag][0] + total
            self._sums[tag][1] = self._sums[tag][1] + count
        else:
            self._sums[tag] = [total, count]

    def masked(self, tag: str, values: Tensor, mask: Tensor) -> None:
        """Add a mean over the values under the mask."""
        self.mean(tag, masked_sum(values.detach().double(), mask), mask.sum())

    def max(self, tag: str, value: float | Tensor) -> None:
        """Keep the largest."""
        value = _plain(value)
        old = self._maxima.get(tag)
        self._maxima[tag] = value if old is None else max(float(old), float(value))

    def quantile(self, tag: str, values: Tensor, q: float) -> None:
        """Add values [n], of all of which the q-quantile (linear interpolation) is logged."""
        self._values.setdefault(tag, (q, []))[1].append(values.detach())

    def merge(self, other: MetricBag) -> None:
        """Add all of another bag."""
        for tag, (total, count) in other._sums.items():
            self.mean(tag, total, count)
        for tag, value in other._maxima.items():
            self.max(tag, value)
        for tag, (q, parts) in other._values.items():
            for part in parts:
                self.quantile(tag, part, q)

    def reduce(self) -> dict[str, float]:
        """The numbers over all processes.  A collective: every process calls it, tags may differ between them."""
        sums = sorted({t for tags in all_objects(sorted(self._sums)) for t in tags})  # type: ignore[attr-defined]
        maxima = sorted({t for tags in all_objects(sorted(self._maxima)) for t in tags})  # type: ignore[attr-defined]

        table = torch.tensor([[float(x) for x in self._sums.get(t, (0.0, 0.0))] for t in sums], dtype=torch.float64)
        tops = torch.tensor([float(self._maxima.get(t, float("-inf"))) for t in maxima], dtype=torch.float64)
        if world_size() > 1:
            device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
            table, tops = all_sum(table.to(device)).cpu(), all_max(tops.to(device)).cpu()
        out = {t: float(row[0] / row[1]) for t, row in zip(sums, table, strict=True) if row[1] != 0}
        out |= {t: float(v) for t, v in zip(maxima, tops, strict=True)}
        mine = {t: (q, torch.cat(parts).double().cpu()) for t, (q, parts) in self._values.items()}
        gathered: list[dict[str, tuple[float, Tensor]]] = all_objects(mine)  # type: ignore[assignment]
        for tag, q in {t: q for one in gathered for t, (q, _) in one.items()}.items():
            out[tag] = float(torch.cat([one[tag][1] for one in gathered if tag in one]).quantile(q))
        return out


def _plain(value: float | Tensor) -> float | Tensor:
    return value.detach() if isinstance(value, Tensor) else value
