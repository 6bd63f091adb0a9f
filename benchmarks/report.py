"""Tables and pictures from the lines of a benchmark."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

Line = dict[str, Any]


def pairs(lines: list[Line], workload: str) -> list[tuple[Line, Line]]:
    """(ours, TRL) of every pair that is complete."""
    found: dict[int, dict[str, Line]] = {}
    for line in lines:
        if line["kind"] == "pair" and line["key"][0] == workload:
            found.setdefault(line["key"][1], {})[line["side"]] = line
    return [(p["ours"], p["trl"]) for p in found.values() if len(p) == 2]


def limit_share(lines: list[Line], workload: str, ours: list[Line]) -> float | None:
    """Time the counted operations would take at the machine's matrix-product peak, over the time they took.

    Operations per completion token, as the counted run draws the same law but is one cycle only.
    """
    flops = next((line for line in lines if line["kind"] == "flops" and line["key"] == workload), None)
    peak = next((line for line in lines if line["kind"] == "peak"), None)
    if flops is None or peak is None:
        return None
    per_token = flops["gflop"] / flops["tokens"]
    return median(line["tokens_per_cpu_s"] for line in ours) * per_token / peak["gflops"]


def table(lines: list[Line], targets: dict[str, tuple[float, float]]) -> str:
    """Medians over the pairs; ratios are medians of the pairs' ratios."""
    rows = [
        "| | pairs | CPU s per cycle, TRL / ours | completion tokens per CPU s, TRL / ours | throughput ratio (target) "
        "| memory growth MB, TRL / ours | ratio (target) | share of matrix-product peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (speed, memory) in targets.items():
        both = pairs(lines, name)
        if not both:
            continue
        ours, trl = [p[0] for p in both], [p[1] for p in both]

        def mid(side: list[Line], field: str) -> float:
            return median(line[field] for line in side)

        faster = median(o["tokens_per_cpu_s"] / t["tokens_per_cpu_s"] for o, t in both)
        smaller = median(t["rss_growth_mb"] / o["rss_growth_mb"] for o, t in both)
        share = limit_share(lines, name, ours)
        rows.append(
            f"| {name} | {len(both)} | {mid(trl, 'cycle_cpu_s'):.1f} / {mid(ours, 'cycle_cpu_s'):.1f} "
            f"| {mid(trl, 'tokens_per_cpu_s'):.0f} / {mid(ours, 'tokens_per_cpu_s'):.0f} "
            f"| **{faster:.1f}** ({speed:g}) "
            f"| {mid(trl, 'rss_growth_mb'):,.0f} / {mid(ours, 'rss_growth_mb'):,.0f} "
            f"| **{smaller:.1f}** ({memory:g}) | {'' if share is None else f'{share:.0%}'} |"
        )
    rows += ["", "CPU seconds of our side per cycle:", ""]
    names = ("rollout", "forward", "backward", "optimizer", "rest")
    rows += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for name in targets:
        both = pairs(lines, name)
        if both:
            parts = [median(o["phase_cpu_s"].get(n, 0.0) for o, _ in both) for n in names]
            rows.append(f"| {name} | " + " | ".join(f"{p:.2f}" for p in parts) + " |")
    return "\n".join(rows)


def curves_png(lines: list[Line], path: Path) -> None:
    """Seconds per cycle against each quantity, both sides."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(line["key"][0] for line in lines if line["kind"] == "curve"))
    if not names:
        return
    figure, axes = pyplot.subplots(1, len(names), figsize=(3.4 * len(names), 3.2), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for side, label in (("trl", "TRL 1.16"), ("ours", "lit-group-rl")):
            points = sorted(
                (line["key"][1], line["cycle_cpu_s"])
                for line in lines
                if line["kind"] == "curve" and line["key"][0] == name and line["side"] == side
            )
            axis.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=label)
        axis.set(xscale="log", yscale="log", xlabel=name)
        ticks = sorted({line["key"][1] for line in lines if line["kind"] == "curve" and line["key"][0] == name})
        axis.set_xticks(ticks, [f"{x:,}" for x in ticks])
        axis.xaxis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("CPU seconds per rollout and update")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
