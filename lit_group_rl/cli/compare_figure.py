"""The picture of a comparison: four panels over completions, a colour per side, thin seeds, thick mean."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from lit_group_rl.cli.compare_results import ACCURACY, TAGS, Comparison
from lit_group_rl.cli.compare_statistics import Curve, mean_curve, smooth

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d")
"""Told apart with colour-blind eyes, on white and on black; the first six are those of Okabe and Ito."""
DASHES = ("-", "--", ":")
"""One more way to tell sides apart once the colours come again."""
INK = "#12345f"
"""Stands for the text colour until the page's own is put in."""
PANELS = {
    ACCURACY: ("held-out accuracy, greedy (%)", 100.0),
    "entropy": ("entropy (nats per token)", 1.0),
    "live groups": ("live groups (%)", 100.0),
    "length": ("completion length (tokens)", 1.0),
}
"""Panel -> its label and the factor that its numbers are shown with."""
SMOOTHED = 0.04
"""Numbers of training steps are drawn as moving averages over this share of a run; accuracy as it was measured."""


def png(comparison: Comparison, path: Path) -> None:
    """Write the picture with a white ground."""
    figure = _draw(comparison)
    part = path.with_name(path.name + ".part")
    figure.savefig(part, format="png", dpi=130)
    part.replace(path)


def svg(comparison: Comparison) -> str:
    """The picture as an SVG element without a ground, whose text has the colour of the page around it."""
    import matplotlib

    colours = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "compare", "font.family": "sans-serif", **colours}
    out = io.StringIO()
    with matplotlib.rc_context(options):
        _draw(comparison).savefig(
            out, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    return re.sub(
        r'<svg([^>]*?) width="[^"]*"', r'<svg\1 width="100%"', re.sub(r' height="[\d.]+pt"', "", text, count=1)
    )


def _draw(comparison: Comparison) -> Any:
    # matplotlib takes a second to import; Figure without pyplot needs no display and touches no global state
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(10, 6.6))
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    grid = figure.subplots(2, 2, sharex=True)
    for axes, name in zip(grid.flat, TAGS, strict=True):
        label, factor = PANELS[name]
        for i, side in enumerate(comparison.sides):
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
            curves = [_shown(run.curves[name], name, factor) for run in side.runs.values()]
            for points in curves if len(curves) > 1 else ():
                axes.plot(*_columns(points), color=colour, linestyle=dash, linewidth=0.9, alpha=0.4)
            mean = mean_curve(curves)
            if mean:
                axes.plot(*_columns(mean), color=colour, linestyle=dash, linewidth=2.6, label=side.name)
        axes.set_title(label, loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}".replace(",", " ")))
    for axes in grid[1]:
        axes.set_xlabel("completions")
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 4), frameon=False)
    return figure


def _shown(points: Curve, name: str, factor: float) -> Curve:
    window = 1 if name == ACCURACY else int(len(points) * SMOOTHED) // 2 * 2 + 1
    return [(x, factor * y) for x, y in smooth(points, window)]


def _columns(points: Curve) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
