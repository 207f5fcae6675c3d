"""Modules over time: what each let through, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from millrace.engine.figures import CellFigures
from millrace.reports.pages.plots import COLOURS, Layer, Plot, Tick, line, linear, logarithmic
from millrace.reports.text import duration, ratio

BUCKETS = 40
_WIDE = 30
"""Highest over lowest cost from which on a scale is logarithmic."""

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
    found: dict[str, np.ndarray] = {}
    for cell in cells:
        end = max((reading.points[-1][0] for reading in cell.readings if reading.points), default=0)
        if end <= 0 or max(len(reading.points) for reading in cell.readings) < 3:
            continue
        places = np.linspace(0, end, BUCKETS + 1)
        for reading in cell.readings:
            # Sums since the beginning, in proportion between two readings.
            points = np.array([(0.0, 0.0, 0.0, 0.0), *reading.points])
            sums = [np.interp(places, points[:, 0], points[:, column]) for column in (1, 2, 3)]
            found.setdefault(reading.module, np.zeros((BUCKETS, 3)))
            found[reading.module] += np.diff(np.column_stack(sums), axis=0)
    return {name: [(i, o, s) for i, o, s in sums.tolist()] for name, sums in found.items()}


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
