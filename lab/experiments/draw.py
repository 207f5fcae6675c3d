"""Drawing an experiment's figure with matplotlib, the same bytes for the same outcome.

How it looks is said in ``figures.mplstyle``. The claim is the caption. Legends stand below their axes, where
they hide nothing. SVG files are made small: a tenth of a point is finer than any screen or printer shows.
"""

from __future__ import annotations

import io
import re
import textwrap
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from lab.experiments.experiment import Experiment, Outcome, Panel
from millrace.errors import SetupError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRID, PAPER = "#1b1f24", "#d8dce1", "#fffffe"
"""Colours of lines and letters, of the grid and of the background; no curve has any of them, so that a page
can put its own in their places."""

_HATCHES = ("", "///", "---", "xx", "\\\\\\", "++", "||")  # no dots: each is a path of curves in an SVG file
_FEW = 25
"""Points up to which a line shows each of them by a marker."""

_MOST_TICKS = 12
_PANEL = (5.4, 3.7)
_LETTERS_PER_INCH = 14.5

_PLACES = re.compile(r' (?:d|x|y|width|height)="[^"]*"')
"""Attributes that hold coordinates; words, scales and opacities keep their digits."""

_FRACTION = re.compile(r"-?\d+\.\d{2,}(?![\de])")
_BREAK = re.compile(r"\s*\n\s*")
_FONT = "'DejaVu Sans'"
_FONTS = f"{_FONT}, Verdana, sans-serif"
"""Verdana has the same widths, and is where DejaVu is not."""


def check_drawing() -> None:
    """Raise SetupError unless matplotlib is installed."""
    if find_spec("matplotlib") is None:
        raise SetupError(
            "matplotlib draws the figures and is not installed: pip install 'millrace[experiments]'"
        )


def draw(experiment: Experiment, outcome: Outcome) -> dict[Literal["png", "svg"], bytes]:
    """Return the figure as a PNG and as an SVG file.

    Raises:
        SetupError: matplotlib is not installed.
    """
    check_drawing()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style = files("lab.experiments") / "figures.mplstyle"
    with as_file(style) as path, rc_context({"svg.hashsalt": experiment.id}, path):
        columns = min(len(outcome.panels), 2)
        rows = -(-len(outcome.panels) // columns)
        width = _PANEL[0] * max(columns, 1.35)
        caption = textwrap.wrap(experiment.claim, round(width * _LETTERS_PER_INCH))
        legend = max(-(-len(panel.curves) // 2) for panel in outcome.panels)
        figure = Figure((width, _PANEL[1] * rows + 0.6 + 0.18 * len(caption) + 0.2 * legend))
        for number, panel in enumerate(outcome.panels):
            _panel(figure.add_subplot(rows, columns, number + 1), panel)
        figure.suptitle(f"{experiment.id}: {experiment.title}", x=0.01, ha="left")
        figure.supxlabel("\n".join(caption), x=0.01, ha="left")
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png.getvalue(), "svg": compact(svg.getvalue())}


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.y_log:
        axes.set_yscale("log")
    if panel.x_log:
        axes.set_xscale("log")
    if panel.kind == "bars":
        _bars(axes, panel)
    else:
        _lines(axes, panel)
    _ticks(axes, panel)
    for place, text in panel.marks:
        axes.axvline(place, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), marker="none")
        top = axes.get_xaxis_transform()
        axes.annotate(
            text, (place, 1), (3, -3), top, "offset points", rotation=90, va="top", fontsize=8, zorder=1
        )
    if len(panel.curves) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)


def _lines(axes: Axes, panel: Panel) -> None:
    for curve in panel.curves:
        if panel.kind == "points":
            axes.plot(curve.x, curve.y, label=curve.name, linestyle="none", alpha=0.75)
        elif panel.kind == "steps":
            axes.step(curve.x, curve.y, label=curve.name, where="post", marker="none")
        else:
            axes.plot(curve.x, curve.y, label=curve.name, marker=None if len(curve.x) <= _FEW else "none")


def _bars(axes: Axes, panel: Panel) -> None:
    """Draw bars side by side, a group for each x; the curves of a panel of bars have the same."""
    from matplotlib.container import BarContainer

    heights = {curve.name: curve.y for curve in panel.curves}
    axes.grouped_bar(heights, group_spacing=0.3, edgecolor=PAPER, linewidth=0)
    drawn = [each for each in axes.containers if isinstance(each, BarContainer)]
    for bars, hatch in zip(drawn, _HATCHES, strict=False):
        for bar in bars:
            bar.set_hatch(hatch)
        if panel.y_log and len(panel.x_names) * len(panel.curves) <= _FEW:  # where heights tell little
            axes.bar_label(bars, fmt=lambda value: _number(float(f"{value:.3g}")), fontsize=8, padding=1)
    axes.grid(visible=False, axis="x")


def _number(value: float, _: object = None) -> str:
    """Return what stands at a tick."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _ticks(axes: Axes, panel: Panel) -> None:
    """Put plain numbers or names at the ticks; let y begin at 0 where that leaves the curves room."""
    for axis, log, name in ((axes.xaxis, panel.x_log, "x"), (axes.yaxis, panel.y_log, "y")):
        axis.set_major_formatter(_number)
        if log:
            values = [value for curve in panel.curves for value in getattr(curve, name) if value > 0]
            axis.set_minor_formatter(_number if values and max(values) < 10 * min(values) else "")
    if panel.x_names:
        step = -(-len(panel.x_names) // _MOST_TICKS)
        axes.set_xticks(range(0, len(panel.x_names), step), panel.x_names[::step])
    values = [y for curve in panel.curves for y in curve.y if y == y]
    roomy = bool(values) and 0 <= min(values) <= (max(values) if panel.kind == "bars" else 0.5 * max(values))
    if roomy and not panel.y_log:
        axes.set_ylim(bottom=0)


def compact(content: bytes) -> bytes:
    """Return a drawing with coordinates of one decimal, no line breaks, and fonts to fall back on."""
    text = _PLACES.sub(lambda found: _FRACTION.sub(_rounded, found[0]), content.decode())
    return _BREAK.sub(" ", text).replace(_FONT, _FONTS).encode()


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.1f}".removesuffix(".0")
