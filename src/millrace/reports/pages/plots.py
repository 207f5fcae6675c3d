"""Charts as data: paths over a square that a page stretches, and words that stand beside it in HTML.

So a chart is as wide as its reader's window, and its letters are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from millrace.reports.text import short

SIDE = 1000
COLOURS = 8
"""Colours that the style sheet has; the last is for all the rest."""


class Tick(NamedTuple):
    """A number at an axis, ``place`` percent from its beginning."""

    place: float
    text: str


class Layer(NamedTuple):
    """An area or line; its value stands beside its name in the legend."""

    name: str
    colour: int
    path: str
    value: str


class Marker(NamedTuple):
    """A place on the horizontal axis, in percent, and the number of the row below that tells about it."""

    place: float
    number: int
    text: str


class Plot(NamedTuple):
    """A chart of ``"areas"`` or ``"lines"``; ``about`` tells those who do not see it ranges and extremes."""

    title: str
    about: str
    kind: str
    layers: tuple[Layer, ...]  # from the bottom up
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    x_label: str
    markers: tuple[Marker, ...] = ()


def areas(heights: Sequence[Sequence[float]]) -> list[str]:
    """Return paths of areas stacked on each other, in steps.

    Heights are shares by layer and bucket; over each bucket they sum to at most 1.
    """
    buckets = len(heights[0])
    floor = [0.0] * buckets
    paths = []
    for layer in heights:
        top = [low + height for low, height in zip(floor, layer, strict=True)]
        paths.append(_steps(top, "M") + _steps(floor, "L", back=True) + "Z")
        floor = top
    return paths


def _steps(values: Sequence[float], first: str, *, back: bool = False) -> str:
    """Return the path of a level for each value; of levels that are alike, the ends."""
    edges = [round(SIDE * i / len(values)) for i in range(len(values) + 1)]
    levels = [round(SIDE * (1 - min(1.0, value))) for value in values]
    points = [point for n, y in enumerate(levels) for point in ((edges[n], y), (edges[n + 1], y))]
    kept = [
        point
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False)
        if before is None or after is None or not before[1] == point[1] == after[1]
    ]
    return first + "L".join(f"{x} {y}" for x, y in (reversed(kept) if back else kept))


def lines(title: str, series: Mapping[str, Sequence[float]], x_ticks: tuple[Tick, ...], x_label: str) -> Plot:
    """Return a chart of lines that begin at 0, each with its latest value."""
    height, ticks = _linear(max(max(values) for values in series.values()))
    return Plot(
        title,
        "; ".join(f"{name} {short(min(v))} to {short(max(v))}" for name, v in series.items()),
        "lines",
        tuple(
            Layer(name, n, _line(values, height), short(values[-1]))
            for n, (name, values) in enumerate(series.items())
        ),
        tuple(Tick(100 * height(value), short(value)) for value in ticks),
        x_ticks,
        x_label,
    )


def _line(values: Sequence[float], scale: Callable[[float], float]) -> str:
    """Return the path of a line through the middles of buckets; the scale says how high a value is, to 1."""
    points = (
        f"{round(SIDE * (n + 0.5) / len(values))} {round(SIDE * (1 - scale(value)))}"
        for n, value in enumerate(values)
    )
    return "M" + "L".join(points)


def _linear(high: float) -> tuple[Callable[[float], float], list[float]]:
    """Return a scale from 0 to a round number above ``high``, and its ticks."""
    step = _nice(high / 4) if high > 0 else 0.25
    top = step * math.ceil(high / step - 1e-9) if high > 0 else 1.0
    return (lambda value: value / top), [step * i for i in range(round(top / step) + 1)]


def _nice(value: float) -> float:
    unit = 10.0 ** math.floor(math.log10(value))
    return unit * next(n for n in (1, 2, 2.5, 5, 10) if n * unit >= value * (1 - 1e-9))
