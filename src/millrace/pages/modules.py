"""Modules over time: what each let through, and what it cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from millrace.figures import CellFigures
from millrace.pages.plots import COLOURS, Layer, Plot, Tick, line, linear, logarithmic
from millrace.pages.units import duration, ratio

BUCKETS = 40
_WIDE = 30
"""Highest over lowest cost from which on a scale is logarithmic."""

_Point = tuple[float, float, float, float]
_Counts = list[tuple[float, float, float]]


def over_time(cells: Sequence[CellFigures]) -> list[Plot]:
    """Return the charts of selectivity and of cost; none where nothing was decided often enough."""
    series = _series(cells)
    if not series:
        return []
    names = sorted(series, key=lambda name: -sum(s for _, _, s in series[name]))[: COLOURS - 1]
    kept = {n: [o / i if i >= 1 else None for i, o, _ in series[n]] for n in names}
    cost = {n: [s / i if i >= 1 and s > 0 else None for i, _, s in series[n]] for n in names}
    high = max((v for values in kept.values() for v in values if v is not None), default=1.0)
    costs = [v for values in cost.values() for v in values if v is not None]
    ratios = linear(max(1.0, high)) if high < _WIDE else logarithmic(_low(kept), high)
    plots = [_plot("Tuples out per tuple in", "Selectivity", kept, ratios, ratio)]
    if costs:
        wide = max(costs) > _WIDE * min(costs)
        scale = logarithmic(min(costs), max(costs)) if wide else linear(max(costs))
        plots.append(
            _plot("Time per tuple" + (", logarithmic" if wide else ""), "Cost", cost, scale, duration)
        )
    return plots


def _low(series: dict[str, list[float | None]]) -> float:
    return min((v for values in series.values() for v in values if v), default=0.1)


def _series(cells: Sequence[CellFigures]) -> dict[str, _Counts]:
    """Return tuples in, tuples out and seconds, by module and bucket of the run, over all cells."""
    found: dict[str, _Counts] = {}
    for cell in cells:
        end = max((reading.points[-1][0] for reading in cell.readings if reading.points), default=0)
        if end <= 0 or max(len(reading.points) for reading in cell.readings) < 3:
            continue
        for reading in cell.readings:
            sums = [_at(reading.points, end * b / BUCKETS) for b in range(BUCKETS + 1)]
            buckets = found.setdefault(reading.module, [(0.0, 0.0, 0.0)] * BUCKETS)
            for b in range(BUCKETS):
                i, o, s = (later - now for now, later in zip(sums[b], sums[b + 1], strict=True))
                buckets[b] = (buckets[b][0] + i, buckets[b][1] + o, buckets[b][2] + s)
    return found


def _at(points: Sequence[_Point], after: float) -> tuple[float, float, float]:
    """Return the sums when ``after`` tuples had come, in proportion between two readings."""
    place = bisect_right(points, after, key=lambda point: point[0])
    if place == len(points):
        return points[-1][1:]
    low = points[place - 1] if place else (0.0, 0.0, 0.0, 0.0)
    high = points[place]
    part = (after - low[0]) / (high[0] - low[0]) if high[0] > low[0] else 0.0
    i, o, s = (a + part * (b - a) for a, b in zip(low[1:], high[1:], strict=True))
    return i, o, s


def _plot(
    title: str,
    what: str,
    series: dict[str, list[float | None]],
    scale: tuple[Callable[[float], float], list[float]],
    shown: Callable[[float], str],
) -> Plot:
    height, ticks = scale
    ranges = {}
    for name, values in series.items():
        there = [v for v in values if v is not None]
        ends = dict.fromkeys((shown(min(there)), shown(max(there)))) if there else ("not used",)
        ranges[name] = " to ".join(ends)
    return Plot(
        title,
        f"{what} of each module over the run: {'; '.join(f'{n} {r}' for n, r in ranges.items())}.",
        "lines",
        tuple(Layer(n, i, line(values, height), ranges[n]) for i, (n, values) in enumerate(series.items())),
        tuple(Tick(100 * height(value), shown(value)) for value in ticks),
        tuple(Tick(place, f"{place} %") for place in (0, 25, 50, 75, 100)),
        "tuples sent on so far",
    )
