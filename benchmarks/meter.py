"""What is measured: CPU and wall seconds per phase, resident memory, floating-point operations."""

from __future__ import annotations

import functools
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def rss_mb() -> float:
    """Resident memory now."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) / 1024 for line in f if line.startswith("VmRSS:"))


def peak_rss_mb() -> float:
    """Largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@functools.cache
def _register_missing_flops() -> None:
    """What torch's counter leaves out: attention on a CPU (a causal call counts as half) and the in-place addmm."""
    import torch
    from torch.utils.flop_counter import register_flop_formula

    def forward(q, k, v, dropout_p=0.0, is_causal=False, *a, out_shape=None, **kw):
        (b, h, s, d), t = q, k[2]
        return 2 * b * h * s * t * d * 2 // (2 if is_causal else 1)

    def backward(go, q, k, v, out, lse, dropout_p=0.0, is_causal=False, *a, out_shape=None, **kw):
        (b, h, s, d), t = q, k[2]
        return 2 * b * h * s * t * d * 5 // (2 if is_causal else 1)

    def addmm(c, a, b, out_shape=None, **kw):
        return 2 * a[0] * a[1] * b[1]

    aten = torch.ops.aten
    register_flop_formula(aten.addmm_)(addmm)
    register_flop_formula(aten._scaled_dot_product_flash_attention_for_cpu)(forward)
    register_flop_formula(aten._scaled_dot_product_flash_attention_for_cpu_backward)(backward)


class Meter:
    """Wall and CPU seconds, and FLOPs when asked, per named phase; nested phases are taken off their parent."""

    def __init__(self, flops: bool = False) -> None:
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)
        self.flop: dict[str, float] = defaultdict(float)
        self.marks: list[tuple[float, float]] = []
        self.lengths: list[list[int]] = []
        self.flops = flops
        self._inner: list[list[float]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what the block costs to ``name``."""
        counter = None
        if self.flops and not self._inner:
            from torch.utils.flop_counter import FlopCounterMode

            _register_missing_flops()
            counter = FlopCounterMode(display=False)
            counter.__enter__()
        frame = [0.0, 0.0]
        self._inner.append(frame)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            self._inner.pop()
            if self._inner:
                self._inner[-1][0] += wall
                self._inner[-1][1] += cpu
            self.wall[name] += wall - frame[0]
            self.cpu[name] += cpu - frame[1]
            if counter is not None:
                counter.__exit__(None, None, None)
                self.flop[name] += counter.get_total_flops()

    def wrap(self, owner: Any, attribute: str, name: Any) -> None:
        """Time every call of a method; ``name`` may be a function of its arguments."""
        inner = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name(*args, **kwargs) if callable(name) else name):
                return inner(*args, **kwargs)

        setattr(owner, attribute, timed)

    def mark(self) -> None:
        """A cycle ends here (or the first begins)."""
        self.marks.append((time.perf_counter(), time.process_time()))

    def reset(self) -> None:
        """Forget the phases so far: the warm-up is over."""
        for table in (self.wall, self.cpu, self.flop):
            table.clear()

    def result(self, warmup: int, rows: int, base_mb: float) -> dict[str, Any]:
        """Everything after the warm-up cycles."""
        spans = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(self.marks, self.marks[1:], strict=False)][warmup:]
        tokens = sum(map(sum, self.lengths[warmup:]))
        wall, cpu = sum(s[0] for s in spans), sum(s[1] for s in spans)
        out = {
            "cycles": len(spans),
            "cycle_wall_s": round(wall / len(spans), 4),
            "cycle_cpu_s": round(cpu / len(spans), 4),
            "completion_tokens": tokens,
            "mean_len": round(tokens / rows / len(spans), 2),
            "tokens_per_wall_s": round(tokens / wall, 2),
            "tokens_per_cpu_s": round(tokens / cpu, 2),
            "phase_cpu_s": {k: round(v / len(spans), 4) for k, v in self.cpu.items()},
            "rss_growth_mb": round(peak_rss_mb() - base_mb, 1),
        }
        out["phase_cpu_s"]["rest"] = round(cpu / len(spans) - sum(out["phase_cpu_s"].values()), 4)
        if self.flops:
            out["phase_gflop"] = {k: round(v / len(spans) / 1e9, 4) for k, v in self.flop.items() if v}
        return out
