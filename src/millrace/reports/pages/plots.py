"""Charts as data: paths over a square that a page stretches, and words that stand beside it in HTML.

So a chart is as wide as its reader's window, and its letters are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

SIDE = 1000
COLOURS = 8
"""Colours that the style sheet has; the last is for all the rest."""


@dataclass(frozen=True)
class Tick:
    """A number at an axis, ``place`` percent from its beginning."""

    place: float
    text: str


@dataclass(frozen=True)
class Layer:
    """One area or line.

    Attributes:
        colour: Its number.
        value: What stands beside its name in the legend.
    """

    name: str
    colour: int
    path: str
    value: str = ""


@dataclass(frozen=True)
class Marker:
    """A place on the horizontal axis that is told about below.

    Attributes:
        place: In percent.
        number: Of the row that tells.
        text: What happened.
    """

    place: float
    number: int
    text: str


@dataclass(frozen=True)
class Plot:
    """A chart.

    Attributes:
        about: What it shows, for those who do not see it: ranges and extremes.
        kind: ``"areas"`` or ``"lines"``.
        layers: From the bottom up.
        y_ticks: From the bottom up.
        x_ticks: From left to right.
        markers: Above it.
    """

    title: str
    about: str
    kind: str
    layers: tuple[Layer, ...]
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
    edges = [round(SIDE * i / len(values)) for i in range(len(values) + 1)]
    points: list[tuple[int, int]] = []
    for number, value in enumerate(values):
        y = round(SIDE * (1 - min(1.0, value)))
        points += [(edges[number], y), (edges[number + 1], y)]
    kept = [p for i, p in enumerate(points) if not 0 < i < len(points) - 1 or not _level(points, i)]
    if back:
        kept.reverse()
    return first + "L".join(f"{x} {y}" for x, y in kept)


def _level(points: Sequence[tuple[int, int]], i: int) -> bool:
    return points[i - 1][1] == points[i][1] == points[i + 1][1]


def line(values: Sequence[float | None], scale: Callable[[float], float]) -> str:
    """Return the path of a line through the middles of buckets; it is broken where there is no value.

    The scale returns how high a value is, from 0 to 1.
    """
    path, pen = [], "M"
    for number, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = round(SIDE * (number + 0.5) / len(values))
        y = round(SIDE * (1 - min(1.0, max(0.0, scale(value)))))
        alone = pen == "M" and (number + 1 == len(values) or values[number + 1] is None)
        path.append(f"{pen}{x} {y}" + ("h4" if alone else ""))
        pen = "L"
    return "".join(path)


def linear(high: float) -> tuple[Callable[[float], float], list[float]]:
    """Return a scale from 0 to a round number above ``high``, and its ticks."""
    step = _nice(high / 4) if high > 0 else 0.25
    top = step * math.ceil(high / step - 1e-9) if high > 0 else 1.0
    return (lambda value: value / top), [step * i for i in range(round(top / step) + 1)]


def _nice(value: float) -> float:
    unit = 10.0 ** math.floor(math.log10(value))
    return unit * next(n for n in (1, 2, 2.5, 5, 10) if n * unit >= value * (1 - 1e-9))
