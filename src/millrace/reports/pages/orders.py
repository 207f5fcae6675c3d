"""Orders over time: which share of the tuples went which way, and where an eddy changed its mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise
from operator import itemgetter

from millrace.engine.figures import CellFigures, Change, OrderTrace, Shift
from millrace.reports.pages.plots import COLOURS, Layer, Marker, Plot, Tick, areas
from millrace.reports.text import count, duration, ratio, share, short

BUCKETS = 80
_MARKED = 9
"""Changes with a marker and a row that is open; those that most tuples followed."""

_LISTED = 60
_OTHERS = "other orders"


@dataclass(frozen=True)
class Turn:
    """A change of order, as told in the table.

    Attributes:
        number: Of its marker; 0 without one.
        place: ``"cell 1, after 1,024 tuples"``.
        followed: Share of the cell's tuples that came until the next change.
        why: What numbers of the two modules had changed.
    """

    number: int
    place: str
    before: str
    after: str
    followed: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class OrdersOverTime:
    """The chart of one source, the same in numbers, and the changes.

    Attributes:
        whose: Whose tuples they are.
        plot: Stacked areas; None where all went one way.
        shares: ``(order, tuples, share)``.
        turns: Those that matter most, in the order of time.
        more: Further ones, that nobody has to read.
        untold: How many there were beyond these.
    """

    whose: str
    plot: Plot | None
    shares: tuple[tuple[str, str, str], ...]
    turns: tuple[Turn, ...]
    more: tuple[Turn, ...]
    untold: int


_Turned = tuple[int, float, int, OrderTrace, Change, Change]
"""Tuples that followed a change, its place in percent, its cell and trace, the order before, and itself."""


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
    turns, more, untold = _turns(traces)
    several = len({cell for cell, _ in traces}) > 1
    plot = (
        None
        if len(layers) == 1
        else Plot(
            f"Share of {whose} by the order that they were sent along",
            f"Stacked areas over the run: {', '.join(f'{n} {share(t / everything)}' for n, t, _ in layers)}. "
            f"{len(turns) + len(more) + untold} changes of order.",
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
            tuple(
                Marker(place, turn.number, f"{turn.place}: {turn.before} becomes {turn.after}")
                for place, turn in turns
            ),
        )
    )
    shares = tuple((name, count(tuples), share(tuples / everything)) for name, tuples, _ in layers)
    return OrdersOverTime(whose, plot, shares, tuple(t for _, t in turns), more, untold)


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


def _turns(
    traces: Sequence[tuple[int, OrderTrace]],
) -> tuple[list[tuple[float, Turn]], tuple[Turn, ...], int]:
    """Return the changes that most tuples followed, by place; others; and how many more there are."""
    several = len({cell for cell, _ in traces}) > 1
    changes = [
        (until - change.after, 100 * change.after / trace.tuples, cell, trace, before, change)
        for cell, trace in traces
        for (before, _), (change, until) in pairwise(_spans(trace))
    ]
    weighty = nlargest(_LISTED, changes, key=itemgetter(0))

    def told(chosen: list[_Turned], first: int) -> list[tuple[float, Turn]]:
        found = []
        for number, each in enumerate(sorted(chosen, key=itemgetter(1)), first):
            weight, place, cell, trace, before, change = each
            where = f"cell {cell}, " if several else ""
            where += f"part {trace.part + 1}, " if trace.part else ""
            where += f"after {count(change.after)} tuples"
            why = tuple(map(_why, change.why))
            followed = share(weight / trace.tuples)
            turn = Turn(number if first else 0, where, before.order, change.order, followed, why)
            found.append((place, turn))
        return found

    more = tuple(turn for _, turn in told(weighty[_MARKED:], 0))
    return told(weighty[:_MARKED], 1), more, len(changes) - len(weighty)


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
