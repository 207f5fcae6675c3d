"""The queries and streams of this process that run, and those that ran last: bounded, drawn elsewhere."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from millrace.errors import MillraceError
from millrace.limits.clock import Clock, WallClock
from millrace.reports.board.query import Beside, QueryView, Running
from millrace.reports.board.stream import StreamRunning, StreamView
from millrace.reports.run_report import RunReport

if TYPE_CHECKING:
    from millrace.reports.micro_batch import MicroBatch

MOST_QUERIES = 32
"""Actions that are kept, those that run among them."""

MOST_STREAMS = 16

_MOST_KNOWN = 1024
"""Runs whose queries are known by name."""

Finished = Callable[[str], Mapping[str, bytes]]
"""Returns the figures of a run's tasks that have ended, compressed, by task."""


@dataclass(frozen=True)
class _Known:
    title: str
    runs: Mapping[str, str]
    beside: Beside
    tasks: Mapping[str, int]


class Board:
    """What is told of queries, by their tasks and by the actions that run them; for any thread.

    Args:
        clock: Tells seconds.
        finished: Where the figures of tasks are that have ended.
    """

    def __init__(self, clock: Clock | None = None, finished: Finished | None = None) -> None:
        self._clock = clock or WallClock()
        self._finished: Finished = finished or _nothing
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._queries: deque[Running] = deque()
        self._streams: OrderedDict[str, StreamRunning] = OrderedDict()

    def known(
        self, title: str, runs: Mapping[str, str], beside: Beside, tasks: Mapping[str, int] | None = None
    ) -> None:
        """Note a query that was planned.

        People know it by its title. ``runs`` has names of its blocks and filters, by run. ``tasks`` is how
        many tasks each run has at most, where that is known. See :data:`millrace.reports.board.query.Beside`.
        """
        with self._lock:
            made = _Known(title, runs, beside, tasks or {})
            for run in runs:
                self._known[run] = made
                self._known.move_to_end(run)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def begun(self, action: str, runs: Iterable[str]) -> Running | None:
        """Note the beginning of an action on queries; returns what :meth:`ended` wants, if they are known."""
        with self._lock:
            known = list({id(each): each for run in runs if (each := self._known.get(run))}.values())
            return self._add(action, known) if known else None

    def ended(self, query: Running, error: BaseException | None = None) -> None:
        self._refresh([query])
        with self._lock:
            query.end(self._clock.now(), error)

    def told(
        self, run: str, task: str, rows_in: int, rows_out: int, packed: bytes, *, over: bool = False
    ) -> None:
        """Note what a task of a run tells while it works, or at its end."""
        with self._lock:
            query = self._of(run, task)
            if query is None and run in self._known and not over:
                query = self._add("", [self._known[run]])
            if query is not None:
                query.told(run, task, (rows_in, rows_out, packed), self._clock.now(), over=over)

    def left(self, run: str, task: str) -> None:
        """Note that a task tells nothing more."""
        with self._lock:
            for query in self._queries:
                query.left(run, task, self._clock.now())

    def batch(self, batch: MicroBatch) -> None:
        with self._lock:
            found = self._streams.get(batch.run)
            if found is None:
                found = self._streams[batch.run] = StreamRunning(next(self._numbers), self._clock.now())
            found.batch(batch, self._clock.now())
            self._drop_streams()

    def stream_ended(self, run: str, error: str | None) -> None:
        """Note the end of a stream, and what it failed with."""
        with self._lock:
            if run in self._streams:
                self._streams[run].end(self._clock.now(), error)

    def queries(self) -> list[QueryView]:
        """Return the queries, those that began last first."""
        with self._lock:
            running = [query for query in self._queries if query.is_running]
        self._refresh(running)
        with self._lock:
            now = self._clock.now()
            for query in self._queries:
                query.look(now)
            return [query.view(now) for query in reversed(self._queries)]

    def streams(self) -> list[StreamView]:
        """Return the streams, those that began last first."""
        with self._lock:
            now = self._clock.now()
            return [stream.view(now) for stream in reversed(self._streams.values())]

    def _refresh(self, queries: Iterable[Running]) -> None:
        """Ask for what tasks do not tell; not under the lock, for others have to answer."""
        for query in queries:
            entries = {run: self._finished(run) for run in query.runs}
            with self._lock:
                known = {id(k): k for run in query.runs if (k := self._known.get(run))}.values()
            found = [told for each in known if (told := _asked(each.beside)) is not None]
            with self._lock:
                if not query.is_running:
                    continue
                for run, finished in entries.items():
                    query.finished(run, finished, self._clock.now())
                if found:
                    lookups = tuple(one for each in found for one in each.lookups)
                    budgets = tuple(one for each in found for one in each.budgets)
                    calls = tuple(one for each in found for one in each.calls)
                    query.report = RunReport({}, found[0].planned, lookups, budgets, calls)

    def _of(self, run: str, task: str) -> Running | None:
        """Return the action that a task works for; one that was cancelled has ended before its tasks do."""
        running = [query for query in self._queries if run in query.runs and query.is_running]
        found = running or [query for query in self._queries if query.awaits(run, task)]
        return found[-1] if found else None

    def _add(self, action: str, known: list[_Known]) -> Running:
        runs = {run: name for each in known for run, name in each.runs.items()}
        if len(known) > 1 and len(set(runs.values())) < len(runs):  # names are those of one query each
            runs = {run: f"{n}: {name}" for n, each in enumerate(known, 1) for run, name in each.runs.items()}
        title = "\n".join(dict.fromkeys(each.title for each in known))
        before = {run: self._finished(run) for run in runs}
        tasks = {run: count for each in known for run, count in each.tasks.items()}
        planned = sum(tasks.values()) if tasks.keys() == runs.keys() else None
        made = Running(next(self._numbers), title, action, runs, self._clock.now(), before, planned)
        self._queries.append(made)
        while len(self._queries) > MOST_QUERIES:
            self._queries.remove(next((q for q in self._queries if not q.is_running), self._queries[0]))
        return made

    def _drop_streams(self) -> None:
        while len(self._streams) > MOST_STREAMS:
            ended = (run for run, stream in self._streams.items() if not stream.is_running)
            del self._streams[next(ended, next(iter(self._streams)))]


def _nothing(_run: str) -> Mapping[str, bytes]:
    return {}


def _asked(beside: Beside) -> RunReport | None:
    try:
        return beside()
    except MillraceError:  # the coordinator has ended, say: the rest is shown all the same
        return None
