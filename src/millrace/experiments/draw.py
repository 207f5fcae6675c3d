"""Drawing an experiment's figure with matplotlib, the same bytes for the same outcome.

Curves differ in colour (Okabe & Ito's, which colour-blind people tell apart), in dashes and in markers. The
claim is the caption. Legends stand below their axes, where they hide nothing.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from importlib.resources import as_file, files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from millrace.errors import SetupError
from millrace.experiments.experiment import Curve, Experiment, Outcome, Panel
from millrace.experiments.svg import INK, PAPER, compact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
_DASHES: tuple[Any, ...] = (
    "solid",
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (6, 2, 1.5, 2)),
    (0, (9, 2, 2, 2, 2, 2)),
    (0, (3, 3)),
    (0, (1, 1)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_HATCHES = ("", "///", "---", "xx", "\\\\\\", "++", "||")  # no dots: each is a path of curves in an SVG file

_FEW = 25
"""Points up to which a line shows each of them by a marker."""

_MOST_TICKS = 12
_PANEL = (5.4, 3.7)
_LETTERS_PER_INCH = 14.5


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    style = files("millrace.experiments") / "figures.mplstyle"
    with as_file(style) as path, rc_context({"svg.hashsalt": experiment.id}, path):
        columns = min(len(outcome.panels), 2)
        rows = -(-len(outcome.panels) // columns)
        width = _PANEL[0] * max(columns, 1.35)
        caption = textwrap.wrap(experiment.claim, round(width * _LETTERS_PER_INCH))
        height = _PANEL[1] * rows + 0.6 + 0.18 * len(caption) + 0.2 * _legend_rows(outcome.panels)
        layout = ConstrainedLayoutEngine(hspace=0.06, wspace=0.04, h_pad=0.08, w_pad=0.08)
        figure = Figure((width, height), layout=layout)
        FigureCanvasAgg(figure)
        for number, panel in enumerate(outcome.panels):
            _panel(figure.add_subplot(rows, columns, number + 1), panel)
        _words(figure, f"{experiment.id}: {experiment.title}", "\n".join(caption))
        return {
            "png": _saved(figure, "png", {"Software": None}),
            "svg": _saved(figure, "svg", {"Date": None, "Creator": None}),
        }


def _saved(figure: Figure, kind: str, metadata: dict[str, Any]) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=150, metadata=metadata)
    return content.getvalue() if kind == "png" else compact(content.getvalue())


def _words(figure: Figure, title: str, caption: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=9.5)


def _legend_rows(panels: Iterable[Panel]) -> int:
    return max(-(-len(panel.curves) // 2) for panel in panels)


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    _scale(axes, panel)
    if panel.kind == "bars":
        _bars(axes, panel)
    else:
        for number, curve in enumerate(panel.curves):
            _line(axes, panel, curve, number)
        if panel.x_names:
            axes.set_xticks(range(len(panel.x_names)), list(panel.x_names))
    for place, text in panel.marks:
        axes.axvline(place, color=INK, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.annotate(
            text,
            (place, 1.0),
            (3, -3),
            axes.get_xaxis_transform(),
            textcoords="offset points",
            rotation=90,
            va="top",
            fontsize=8,
            zorder=1,  # behind the curves
        )
    _from_zero(axes, panel)
    if len(panel.curves) > 1:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, handlelength=3.6)


def _number(value: float, _: object = None) -> str:
    """Return what stands at a tick."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _scale(axes: Axes, panel: Panel) -> None:
    """Choose linear or logarithmic axes, with plain numbers at their ticks."""
    if panel.y_log:
        axes.set_yscale("log")
    if panel.x_log and panel.kind != "bars":
        axes.set_xscale("log")
    ranges = ((axes.xaxis, panel.x_log, "x"), (axes.yaxis, panel.y_log, "y"))
    for axis, log, name in ranges:
        axis.set_major_formatter(_number)
        if log:
            values = [value for curve in panel.curves for value in getattr(curve, name) if value > 0]
            short = bool(values) and max(values) < 10 * min(values)
            axis.set_minor_formatter(_number if short else "")


def _line(axes: Axes, panel: Panel, curve: Curve, number: int) -> None:
    style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": curve.name}
    marker = _MARKERS[number % len(_MARKERS)]
    if panel.kind == "points":
        axes.plot(curve.x, curve.y, linestyle="none", marker=marker, alpha=0.75, **style)
        return
    style["linestyle"] = _DASHES[number % len(_DASHES)]
    if panel.kind == "steps":
        axes.step(curve.x, curve.y, where="post", **style)
    else:
        axes.plot(curve.x, curve.y, marker=marker if len(curve.x) <= _FEW else None, **style)


def _bars(axes: Axes, panel: Panel) -> None:
    """Draw bars side by side at whole places, one place for each x that there is."""
    places = {x: place for place, x in enumerate(sorted({x for curve in panel.curves for x in curve.x}))}
    width = 0.84 / len(panel.curves)
    for number, curve in enumerate(panel.curves):
        shift = (number - (len(panel.curves) - 1) / 2) * width
        drawn = axes.bar(
            [places[x] + shift for x in curve.x],
            curve.y,
            width * 0.94,
            color=COLOURS[number % len(COLOURS)],
            edgecolor=PAPER,
            linewidth=0,
            hatch=_HATCHES[number % len(_HATCHES)],
            label=curve.name,
        )
        if panel.y_log and len(places) * len(panel.curves) <= _FEW:  # where heights tell little
            axes.bar_label(drawn, fmt=lambda value: _number(float(f"{value:.3g}")), fontsize=8, padding=1)
    names = [panel.x_names[int(x)] if panel.x_names else f"{x:,g}" for x in places]
    step = -(-len(names) // _MOST_TICKS)
    axes.set_xticks(range(0, len(names), step), names[::step])
    axes.grid(visible=False, axis="x")


def _from_zero(axes: Axes, panel: Panel) -> None:
    """Let y begin at 0 where nothing is below it and that leaves the curves room."""
    values: Sequence[float] = [y for curve in panel.curves for y in curve.y if y == y]
    if panel.y_log or not values or min(values) < 0:
        return
    if panel.kind == "bars" or min(values) <= 0.5 * max(values):
        axes.set_ylim(bottom=0)
