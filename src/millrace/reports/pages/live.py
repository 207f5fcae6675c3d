"""Running queries and streams as a page that keeps itself up to date, drawn as reports are."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from millrace.limits.progress import merged, quantile
from millrace.reports.board.query import Running, RunningQuery, RunningStream
from millrace.reports.pages.page import block_view, environment
from millrace.reports.pages.plots import Plot, Tick, lines
from millrace.reports.run_report import RunReport
from millrace.reports.stream_report import StreamReport
from millrace.reports.tables import Table
from millrace.reports.text import count, duration, short, size
from millrace.reports.views import Tile, budgets_table, lookups_table

BUCKETS = 80
_MOST_BLOCKS = 6


class Part(NamedTuple):
    """What the page shows of one query or stream; the stamp differs where the markup does."""

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
    return environment().get_template("live.js").render()


def query_part(query: RunningQuery) -> Part:
    """Return what is shown of a query."""
    report, action = query.report, f"{query.action} of " if query.action else ""
    tables = (lookups_table(report), budgets_table(report))
    return _part(query, action, _query_tiles(query), _rows_plot(query), tables, report)


def stream_part(stream: RunningStream) -> Part:
    """Return what is shown of a stream."""
    report = StreamReport(stream.batches, stream.is_running)
    return _part(stream, "stream ", _stream_tiles(stream), _batches_plot(stream), [report.table])


def said(parts: Sequence[Part]) -> str:
    """Return how many there are of each state, as a sentence."""
    counts = Counter(part.state for part in parts)
    told = [f"{counts[state]} {state}" for state in ("running", "failed", "done") if counts[state]]
    return ", ".join(told) if told else "No query yet."


def _part(
    view: Running,
    kind: str,
    tiles: Iterable[Tile],
    plot: Plot | None,
    tables: Iterable[Table | None],
    report: RunReport | None = None,
) -> Part:
    name, title, report = f"query-{view.number}", f"{kind}{view.title}", report or RunReport()
    html = (
        environment()
        .get_template("live_part.html")
        .render(
            id=name,
            state=view.state,
            title=title,
            error=view.error,
            tiles=list(tiles),
            plot=plot,
            tables=[table for table in tables if table is not None],
            blocks=[block_view(report, block) for block in list(report.blocks)[:_MOST_BLOCKS]],
            more_blocks=max(0, len(report.blocks) - _MOST_BLOCKS),
        )
    )
    return Part(name, view.state, title, f"{zlib.crc32(html.encode()):08x}", html)


def _query_tiles(query: RunningQuery) -> Iterator[Tile]:
    whole = query.state != "running"
    yield Tile("rows read", count(query.rows_in))
    yield Tile("rows out of eddies", count(query.rows_out))
    yield Tile("rows read a second", short(query.rate), "over all" if whole else "in the last 5 s")
    yield Tile("time", duration(query.seconds))
    tasks = count(query.tasks) + ("" if query.planned is None else f" of {count(query.planned)}")
    waits = query.state == "running" and not query.tasks
    note = "Spark plans, or starts workers" if waits else f"{count(query.over)} ended"
    yield Tile("tasks reporting", tasks, note, "A task reports after half a second of work, or at its end.")
    if calls := sum(one.evaluated for _, one in query.report.modules()):
        yield Tile("calls of functions", count(calls))
    lookups = (*query.report.lookups, *query.report.calls)
    if lookups:
        under_way = sum(one.in_flight for one in lookups)
        yield Tile("requests", count(sum(one.requests for one in lookups)), f"{count(under_way)} under way")
        took = merged(one.latencies for one in lookups)
        half, most = quantile(took, 0.5), quantile(took, 0.95)
        if half is not None and most is not None:
            yield Tile("half of them within", duration(half), f"95 % within {duration(most)}")
        if limited := sum(one.limited for one in lookups):
            yield Tile("refused as too many", count(limited), "429, 503")


def _stream_tiles(stream: RunningStream) -> Iterator[Tile]:
    latest = stream.batches[-1]
    yield Tile("rows in time", count(stream.rows_in), f"{count(stream.late)} late")
    yield Tile("results", count(stream.rows_out))
    yield Tile("rows a second", short(stream.rate), f"in the last {len(stream.batches)} micro-batches")
    yield Tile("micro-batch", str(latest.batch), duration(latest.seconds))
    yield Tile("tuples kept", count(latest.held), size(latest.bytes))
    if latest.lag is not None:
        yield Tile("watermark behind", duration(max(0.0, latest.lag)), "the newest row")


def _rows_plot(query: RunningQuery) -> Plot | None:
    """Return rows over time, in buckets of equal length; None before there are any."""
    points = query.points
    if len(points) < 3 or points[-1][0] <= 0 or not any(points[-1][1:]):
        return None
    end, place = points[-1][0], 0
    series: dict[str, list[float]] = {"rows read": [], "rows out of eddies": []}
    for bucket in range(BUCKETS):
        until = end * (bucket + 1) / BUCKETS
        while place + 1 < len(points) and points[place + 1][0] <= until:
            place += 1
        for values, value in zip(series.values(), points[place][1:], strict=True):
            values.append(value)
    ticks = tuple(Tick(at, duration(end * at / 100)) for at in (0, 25, 50, 75, 100))
    return lines("Rows over time", series, ticks, "since it began")


def _batches_plot(stream: RunningStream) -> Plot | None:
    """Return the rows of each micro-batch; None where there are too few."""
    batches = stream.batches
    if len(batches) < 3:
        return None
    series = {"rows in time": [each.rows for each in batches], "results": [each.results for each in batches]}
    ticks = (Tick(0, str(batches[0].batch)), Tick(100, str(batches[-1].batch)))
    return lines("Rows of each micro-batch", series, ticks, "micro-batch")
