"""Running queries and streams as a page that keeps itself up to date, drawn as reports are."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.limits.progress import merged, quantile
from millrace.reports.board.query import QueryView
from millrace.reports.board.stream import StreamView
from millrace.reports.pages.page import block_view, environment
from millrace.reports.pages.plots import Layer, Plot, Tick, line, linear
from millrace.reports.text import count, duration, short, size
from millrace.reports.views import Bar, Table, budgets_table, lookups_table

BUCKETS = 80
_MOST_BLOCKS = 6


@dataclass(frozen=True)
class Part:
    """What the page shows of one query or stream.

    Attributes:
        id: Of its element.
        state: ``"running"``, ``"done"`` or ``"failed"``.
        stamp: Differs where its markup does.
    """

    id: str
    state: str
    title: str
    stamp: str
    html: str


def shell(every: float) -> str:
    """Return the page without its parts; its script asks for them ``every`` so many seconds."""
    return environment().get_template("live.html").render(every=every)


def script() -> str:
    """Return the page's script."""
    source = environment().loader
    assert source is not None
    return source.get_source(environment(), "live.js")[0]


def query_part(query: QueryView) -> Part:
    """Return what is shown of a query."""
    blocks = [block_view(query.report, name) for name in list(query.report.blocks)[:_MOST_BLOCKS]]
    found = {
        "blocks": blocks,
        "more_blocks": max(0, len(query.report.blocks) - _MOST_BLOCKS),
        "tiles": list(_query_tiles(query)),
        "charts": [plot for plot in [_rows_plot(query)] if plot is not None],
        "tables": [t for t in (lookups_table(query.report), budgets_table(query.report)) if t is not None],
    }
    action = f"{query.action} of " if query.action else ""
    return _part(f"query-{query.number}", query.state, f"{action}{query.title}", query.error, found)


def stream_part(stream: StreamView) -> Part:
    """Return what is shown of a stream."""
    plot = _batches_plot(stream)
    found = {
        "blocks": [],
        "more_blocks": 0,
        "tiles": list(_stream_tiles(stream)),
        "charts": [] if plot is None else [plot],
        "tables": [_streams_table(stream)],
    }
    return _part(f"query-{stream.number}", stream.state, f"stream {stream.title}", stream.error, found)


def said(parts: Sequence[Part]) -> str:
    """Return how many there are of each state, as a sentence."""
    counts = Counter(part.state for part in parts)
    told = [f"{counts[state]} {state}" for state in ("running", "failed", "done") if counts[state]]
    return ", ".join(told) if told else "No query yet."


def _part(name: str, state: str, title: str, error: str, found: dict[str, Any]) -> Part:
    html = (
        environment()
        .get_template("live_part.html")
        .render(found, id=name, state=state, title=title, error=error)
    )
    return Part(name, state, title, f"{zlib.crc32(html.encode()):08x}", html)


def _query_tiles(query: QueryView) -> Iterator[tuple[str, str, str]]:
    whole = query.state != "running"
    yield "rows read", count(query.rows_in), ""
    yield "rows out of eddies", count(query.rows_out), ""
    yield "rows read a second", short(query.rate), "over all" if whole else "of late"
    yield "time", duration(query.seconds), ""
    tasks = count(query.tasks) + ("" if query.planned is None else f" of {count(query.planned)}")
    yield "tasks that told", tasks, f"{count(query.over)} ended"
    calls = sum(one.evaluated for _, one in query.report.modules())
    if calls:
        yield "calls of functions", count(calls), ""
    lookups = (*query.report.lookups, *query.report.calls)
    if lookups:
        asked = sum(one.requests for one in lookups)
        flying = sum(one.in_flight for one in lookups)
        yield "requests", count(asked), f"{count(flying)} under way"
        took = merged(one.latencies for one in lookups)
        half, most = quantile(took, 0.5), quantile(took, 0.95)
        if half is not None and most is not None:
            yield "half of them within", duration(half), f"95 % within {duration(most)}"
        if limited := sum(one.limited for one in lookups):
            yield "refused as too many", count(limited), "429, 503"


def _stream_tiles(stream: StreamView) -> Iterator[tuple[str, str, str]]:
    latest = stream.batches[-1]
    yield "rows in time", count(stream.rows_in), f"{count(stream.late)} late"
    yield "results", count(stream.rows_out), ""
    yield "rows a second", short(stream.rate), "of late"
    yield "micro-batch", str(latest.batch), duration(latest.seconds)
    yield "tuples kept", count(latest.held), size(latest.bytes)
    if latest.lag is not None:
        yield "watermark behind", duration(max(0.0, latest.lag)), "the newest row"


def _streams_table(stream: StreamView) -> Table:
    latest = stream.batches[-1].streams
    most = max((one.tuples for one in latest), default=0)
    rows = [
        Bar(
            one.alias,
            one.tuples / most if most else 0.0,
            (
                count(
                    sum(each.rows for b in stream.batches for each in b.streams if each.alias == one.alias)
                ),
                count(one.tuples),
                size(one.nbytes),
                size(one.log_bytes),
            ),
        )
        for one in latest
    ]
    caption = f"Streams; rows are those of the last {len(stream.batches)} micro-batches"
    return Table(caption, ("stream", "rows", "tuples kept", "memory", "log"), tuple(rows))


def _rows_plot(query: QueryView) -> Plot | None:
    """Return rows over time, in buckets of equal length; None before there are any."""
    points = query.points
    if len(points) < 3 or points[-1][0] <= 0 or not any(points[-1][1:]):
        return None
    end = points[-1][0]
    series: dict[str, list[float]] = {"rows read": [], "rows out of eddies": []}
    place = 0
    for bucket in range(BUCKETS):
        until = end * (bucket + 1) / BUCKETS
        while place + 1 < len(points) and points[place + 1][0] <= until:
            place += 1
        for name, value in zip(series, points[place][1:], strict=True):
            series[name].append(value)
    high = max(max(values) for values in series.values())
    height, ticks = linear(high)
    return Plot(
        "Rows over time",
        "; ".join(f"{name} {count(values[-1])}" for name, values in series.items()),
        "lines",
        tuple(
            Layer(name, n, line(values, height), count(values[-1]))
            for n, (name, values) in enumerate(series.items())
        ),
        tuple(Tick(100 * height(value), short(value)) for value in ticks),
        tuple(Tick(at, duration(end * at / 100)) for at in (0, 25, 50, 75, 100)),
        "since it began",
    )


def _batches_plot(stream: StreamView) -> Plot | None:
    """Return the rows of each micro-batch; None where there are too few."""
    if len(stream.batches) < 3:
        return None
    rows = [float(each.rows) for each in stream.batches]
    results = [float(each.results) for each in stream.batches]
    series = {"rows in time": rows, "results": results}
    height, ticks = linear(max(*rows, *results))
    first, last = stream.batches[0].batch, stream.batches[-1].batch
    return Plot(
        "Rows of each micro-batch",
        "; ".join(f"{name} {short(min(v))} to {short(max(v))}" for name, v in series.items()),
        "lines",
        tuple(
            Layer(name, n, line(values, height), f"{short(values[-1])} in the latest")
            for n, (name, values) in enumerate(series.items())
        ),
        tuple(Tick(100 * height(value), short(value)) for value in ticks),
        (Tick(0, str(first)), Tick(100, str(last))),
        "micro-batch",
    )
