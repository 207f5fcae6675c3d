"""Orders over time: which share of the tuples went which way, and where an eddy changed its mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nlargest
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from millrace.engine.figures import CellFigures, Change, OrderTrace, Shift
from millrace.reports.pages.plots import COLOURS, Layer, Marker, Plot, Tick, areas
from millrace.reports.tables import MOST_ROWS, Table, table
from millrace.reports.text import count, duration, ratio, share, short

BUCKETS = 80
_MARKED = 9
"""Changes with a marker and a row that is open; those that most tuples followed."""

_OTHERS = "other orders"


class OrdersOverTime(NamedTuple):
    """The chart of one source, None where all went one way; the same in numbers; and the changes of order."""

    whose: str
    plot: Plot | None
    shares: Table
    changes: Table | None


def orders_over_time(cells: Sequence[CellFigures]) -> OrdersOverTime | None:
    """Return the chart of the largest source whose tuples had a choice; None where none had."""
    sources: dict[str, list[tuple[int, OrderTrace]]] = {}
    for cell in cells:
        for trace in cell.traces:
            sources.setdefault(trace.source, []).append((cell.cell, trace))
    had = {name: traces for name, traces in sources.items() if _had_choice(traces)}
    if not had:
        return None
    return _of_source(*max(had.items(), key=lambda item: sum(trace.tuples for _, trace in item[1])))


def _had_choice(traces: Sequence[tuple[int, OrderTrace]]) -> bool:
    orders = {change.order for _, trace in traces for change in trace.changes}
    return len(orders) > 1 or any("→" in order for order in orders)


def _of_source(source: str, traces: Sequence[tuple[int, OrderTrace]]) -> OrdersOverTime:
    totals: Counter[str] = Counter()
    buckets: dict[str, list[float]] = {}
    for _, trace in traces:
        for change, until in _spans(trace):
            totals[change.order] += until - change.after
            heights = buckets.setdefault(change.order, [0.0] * BUCKETS)
            _spread(heights, change.after / trace.tuples, until / trace.tuples, trace.tuples)
    everything = sum(totals.values())
    whose = "the rows" if source == "rows" else f"the tuples of {source}"
    most = [order for order, _ in totals.most_common(COLOURS - 1)]
    rest = [order for order in totals if order not in most]
    layers = [(order, totals[order], buckets[order]) for order in most]
    if rest:
        summed = [sum(values) for values in zip(*(buckets[o] for o in rest), strict=True)]
        layers.append((_OTHERS, sum(totals[o] for o in rest), summed))
    per_bucket = everything / BUCKETS
    paths = areas([[value / per_bucket for value in values] for _, _, values in layers])
    changes, markers, many = _changes(traces)
    several = len({cell for cell, _ in traces}) > 1
    plot = (
        None
        if len(layers) == 1
        else Plot(
            f"Share of {whose} by the order that they were sent along",
            f"Stacked areas over the run: {', '.join(f'{n} {share(t / everything)}' for n, t, _ in layers)}. "
            f"{many} changes of order.",
            "areas",
            tuple(
                Layer(name, COLOURS - 1 if name == _OTHERS else i, path, share(tuples / everything))
                for i, ((name, tuples, _), path) in enumerate(zip(layers, paths, strict=True))
            ),
            tuple(Tick(place, f"{place} %") for place in (0, 25, 50, 75, 100)),
            tuple(
                Tick(place, f"{place} %" if several else short(everything * place / 100))
                for place in (0, 25, 50, 75, 100)
            ),
            f"{whose} sent on so far" + (", in each cell" if several else ""),
            markers,
        )
    )
    rows = [{"way": name, "tuples": tuples, "share": tuples / everything} for name, tuples, _ in layers]
    shares = table("Orders", rows, ("way", "tuples", "share"), "share")
    assert shares is not None
    return OrdersOverTime(whose, plot, shares, changes)


def _spans(trace: OrderTrace) -> Iterator[tuple[Change, int]]:
    """Yield each change with the tuples that had come when the next one was made."""
    for change, following in pairwise((*trace.changes, Change(trace.tuples, ""))):
        yield change, max(change.after, min(following.after, trace.tuples))


def _spread(heights: list[float], low: float, high: float, weight: float) -> None:
    """Add tuples to the buckets that they fall into."""
    for bucket in range(int(low * BUCKETS), BUCKETS):
        inside = min(high, (bucket + 1) / BUCKETS) - max(low, bucket / BUCKETS)
        if inside <= 0 and bucket / BUCKETS > high:
            break
        heights[bucket] += max(0.0, inside) * weight


def _changes(
    traces: Sequence[tuple[int, OrderTrace]],
) -> tuple[Table | None, tuple[Marker, ...], int]:
    """Return the changes that most tuples followed, in the order of time; markers; and how many there are.

    First come those that have markers.
    """
    several = len({cell for cell, _ in traces}) > 1
    changes = [
        (until - change.after, change.after / trace.tuples, cell, trace, before, change)
        for cell, trace in traces
        for (before, _), (change, until) in pairwise(_spans(trace))
    ]
    listed = nlargest(MOST_ROWS, changes, key=itemgetter(0))
    rows, markers = [], list[Marker]()
    for chosen in (listed[:_MARKED], listed[_MARKED:]):
        for followed, place, cell, trace, before, change in sorted(chosen, key=itemgetter(1)):
            where = f"cell {cell}, " if several else ""
            where += f"part {trace.part + 1}, " if trace.part else ""
            where += f"after {count(change.after)} tuples"
            why = "; ".join(map(_why, change.why)) or "another route was tried"
            both = {"before": before.order, "after": change.order}
            rows.append({"when": where, **both, "why": why, "followed": followed / trace.tuples})
            if len(markers) < _MARKED:
                text = f"{where}: {before.order} becomes {change.order}"
                markers.append(Marker(100 * place, len(rows), text))
    caption = "Where the eddies changed their mind, and why"
    names = ("when", "before", "after", "why", "followed")
    more = len(changes) - len(rows)
    return table(caption, rows, names, more=more, numbered=len(markers)), tuple(markers), len(changes)


def _why(shift: Shift) -> str:
    kept, cost = shift.selectivity, shift.cost
    if kept[0] is None or cost[0] is None:
        return (
            f"{shift.module}: {ratio(kept[1])} pass, {duration(cost[1])} a tuple, measured for the first time"
        )
    return (
        f"{shift.module}: {_moved(ratio(kept[0]), ratio(kept[1]))} pass, "
        f"{_moved(duration(cost[0]), duration(cost[1]))} a tuple"
    )


def _moved(before: str, now: str) -> str:
    return f"still {now}" if before == now else f"{before} → {now}"
