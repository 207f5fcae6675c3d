"""Drawing a figure with matplotlib: static plans grey, eddies in colour, bars from zero, no label on another.

Whatever makes a picture say something else than its caption stands in it: the verdict, parameters that were
changed, a broken engine. Each is drawn twice, with all that and, for slides, without title and words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import combinations, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.figures.figure import Panel
from lab.figures.run import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which colour-blind people tell apart."""

GREYS = ("#707070", "#a0a0a0", "#404040", "#c4c4c4")
_DASHES = ("-", "--", ":", "-.", (0, (9, 2, 2, 2)), (0, (3, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P")
_FEW = 25
"""Points up to which a line shows each of them by a marker."""

_STYLE: Any = {
    "font.size": 9.5,
    "text.parse_math": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d8dce1",
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "path.simplify_threshold": 0.6,
    "svg.fonttype": "none",  # letters can be searched and read aloud
}


def save(result: Result, folder: Path) -> list[Path]:
    """Write ``ID.svg`` and ``ID.pdf``, and both without words as ``ID-slide``; return what was written."""
    from matplotlib import rc_context

    written = []
    with rc_context({**_STYLE, "svg.hashsalt": result.task.id}):
        for drawn, name in ((picture(result), result.task.id), (slide(result), f"{result.task.id}-slide")):
            for kind, metadata in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
                written.append(folder / f"{name}.{kind}")
                drawn.savefig(written[-1], format=kind, metadata=metadata)
    return written


def picture(result: Result) -> Picture:
    """Return the drawing of a run that did not fail, with title and caption."""
    drawn = _drawn(result, caption(result))
    drawn.suptitle(f"{result.task.id}: {result.task.figure.title}", x=0.01, ha="left", weight="bold")
    return drawn


def slide(result: Result) -> Picture:
    """Return the drawing without words; what makes it unlike its figure stands in it all the same."""
    return _drawn(result, unusual(result))


def _drawn(result: Result, words: list[str]) -> Picture:
    from matplotlib.figure import Figure as Picture

    assert result.outcome is not None
    panels = result.outcome.panels
    columns = min(len(panels), 2)
    heights = [max(map(_height, panels[i : i + columns])) for i in range(0, len(panels), columns)]
    width = 5.6 * max(columns, 1.35)
    lines = [part for line in words for part in textwrap.wrap(line, round(width * 14))]
    drawn = Picture((width, sum(heights) + 0.5 + 0.17 * len(lines)))
    grid = drawn.add_gridspec(len(heights), columns, height_ratios=heights)
    for number, panel in enumerate(panels):
        _panel(drawn.add_subplot(grid[number // columns, number % columns]), panel)
    drawn.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=9)
    return drawn


def unusual(result: Result) -> list[str]:
    """Return what is not as in the figure: a broken engine, small sizes, changed parameters."""
    task, figure = result.task, result.task.figure
    found = [f"ABLATED: {figure.broken[task.ablated]}"] if task.ablated else []
    found += ["small"] * task.small
    changed = [f"{name} = {value:g}" for name, value in figure.changed(result.values).items()]
    return found + ([f"changed: {', '.join(changed)}"] if changed else [])


def caption(result: Result) -> list[str]:
    """Return the lines below a picture: what it shows, the paper's numbers beside ours, and the verdict."""
    figure = result.task.figure
    lines = [
        f"{figure.source}. {figure.says}",
        f"Verdict: {result.verdict.upper()}. {'; '.join(unusual(result))}",
    ]
    for claim, value, verdict in result.judge_claims():
        paper = f"paper: {claim.paper}; " if claim.paper else ""
        lines.append(f"– {claim.says}: {paper}here {value:.3g} ({verdict})")
    return lines


def _height(panel: Panel) -> float:
    if panel.kind != "bars":
        return 3.5 + 0.2 * -(-len(panel.curves) // 2) * (len(panel.curves) > 1)
    return 1.1 + 0.24 * (len(panel.x_names) * (len(panel.curves) + 0.4)) + 0.2 * (len(panel.curves) > 1)


def _colours(panel: Panel, names: list[str]) -> Iterator[str]:
    greys, colours = cycle(GREYS), cycle(COLOURS)
    return (next(greys) if name in panel.static else next(colours) for name in names)


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, pad=6 + 12 * min(len(panel.marks), 2))
    (_bars if panel.kind == "bars" else _lines)(axes, panel)
    if not panel.x_log:
        axes.locator_params(axis="x", nbins=5)  # so few that numbers of six digits have room
    for number, (place, text) in enumerate(panel.marks):
        axes.axvline(place, color="#1b1f24", linewidth=0.9, linestyle=":")
        above = (0, 3 + 10 * (number % 2))  # neighbours stand on two lines
        axes.annotate(
            text, (place, 1), above, axes.get_xaxis_transform(), "offset points", fontsize=8, ha="center"
        )
    if len(panel.curves) > 1:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.15 if panel.kind != "bars" else -0.5 / _height(panel)),
            ncols=2,
        )


def _lines(axes: Axes, panel: Panel) -> None:
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_yscale("log" if panel.y_log else "linear")
    axes.set_xscale("log" if panel.x_log else "linear")
    colours = _colours(panel, [curve.name for curve in panel.curves])
    for curve, colour, dashes, marker in zip(panel.curves, colours, cycle(_DASHES), cycle(_MARKERS)):
        look: Any = {"label": curve.name, "color": colour}
        if panel.kind == "points":
            axes.plot(curve.x, curve.y, marker, alpha=0.75, **look)
        else:
            steps = "steps-post" if panel.kind == "steps" else "default"
            few = marker if len(curve.x) <= _FEW and panel.kind == "line" else ""
            axes.plot(curve.x, curve.y, linestyle=dashes, marker=few, drawstyle=steps, **look)
    axes.xaxis.set_major_formatter(_number)
    axes.yaxis.set_major_formatter(_number)
    values = [y for curve in panel.curves for y in curve.y if y == y]
    if values and 0 <= min(values) <= 0.5 * max(values) and not panel.y_log:
        axes.set_ylim(bottom=0)


def _bars(axes: Axes, panel: Panel) -> None:
    """Draw bars that lie, a group for each name, each with its number at its end."""
    groups, several = len(panel.x_names), len(panel.curves) > 1
    thick = 0.8 / len(panel.curves)
    names = [curve.name for curve in panel.curves] if several else list(panel.x_names)
    colours = list(_colours(panel, names))
    for number, curve in enumerate(panel.curves):
        places = [group + number * thick for group in range(groups)]
        drawn = axes.barh(
            places, curve.y, thick, label=curve.name, color=colours[number] if several else colours[:groups]
        )
        axes.bar_label(drawn, fmt=lambda value: _number(float(f"{value:.3g}")), fontsize=8, padding=2)
    axes.set_yticks([group + 0.4 - thick / 2 for group in range(groups)], panel.x_names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=panel.y_label, ylabel=panel.x_label)
    axes.set_xlim(left=min(0.0, *(y for curve in panel.curves for y in curve.y)))
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(_number)


def _number(value: float, _: object = None) -> str:
    """Return what stands at a tick."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def overlaps(drawn: Picture) -> list[tuple[str, str]]:
    """Return labels of ticks and marks that lie on each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(drawn)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = []
    for axes in drawn.axes:
        for texts in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts):
            shown = [text for text in texts if text.get_text() and text.get_visible()]
            boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
            found += [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]
    return found
