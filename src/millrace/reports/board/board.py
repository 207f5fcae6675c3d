"""The queries and streams of this process that run, and those that ran last: bounded, drawn elsewhere."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from millrace.errors import MillraceError
from millrace.limits.clock import Clock, WallClock
from millrace.limits.messages import Figures, JoinBoard, Message
from millrace.limits.session import Session
from millrace.reports.board.query import RunningQuery, RunningStream, unpacked
from millrace.reports.run_report import RunReport

if TYPE_CHECKING:
    from millrace.reports.micro_batch import MicroBatch

MOST_QUERIES = 32
"""Actions that are kept, those that run among them."""

MOST_STREAMS = 16

_MOST_KNOWN = 1024
"""Runs whose queries are known by name."""

_MOST_TASKS = 4096
"""Tasks that tell at a time."""

Finished = Callable[[str], Mapping[str, bytes]]
"""Returns the figures of a run's tasks that have ended, compressed, by task."""


Status = Callable[[], RunReport | None]
"""Returns what is known beside figures: the plan, lookups, budgets; None once the query is gone."""


class _Known(NamedTuple):
    title: str
    runs: Mapping[str, str]
    status: Status
    tasks: Mapping[str, int]


class Board:
    """What is told of queries, by their tasks and by the actions that run them; for any thread."""

    def __init__(self, clock: Clock | None = None, finished: Finished | None = None) -> None:
        self._clock = clock or WallClock()
        self._finished: Finished = finished or (lambda _run: {})
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._queries: deque[RunningQuery] = deque()
        self._streams: OrderedDict[str, RunningStream] = OrderedDict()

    def known(
        self, title: str, runs: Mapping[str, str], status: Status, tasks: Mapping[str, int] | None = None
    ) -> None:
        """Note a query that was planned.

        People know it by its title. ``runs`` has names of its blocks and filters, by run. ``tasks`` is how
        many tasks each run has at most, where that is known.
        """
        with self._lock:
            made = _Known(title, runs, status, tasks or {})
            for run in runs:
                self._known[run] = made
                self._known.move_to_end(run)
            while len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def begun(self, action: str, runs: Iterable[str]) -> RunningQuery | None:
        """Note the beginning of an action on queries; returns what :meth:`ended` wants, if they are known."""
        with self._lock:
            known = list({id(each): each for run in runs if (each := self._known.get(run))}.values())
            return self._add(action, known) if known else None

    def end(self, query: RunningQuery, error: BaseException | None = None) -> None:
        self._refresh([query])
        with self._lock:
            query.end(self._clock.now(), error)

    def told(self, run: str, task: str, figures: Figures) -> None:
        """Note what a task of a run tells while it works, or at its end."""
        with self._lock:
            query = self._of(run, task)
            if (
                query is None
                and run in self._known
                and not (figures.over or self._is_late(run, figures.packed))
            ):
                query = self._add("", [self._known[run]])
            if query is not None:
                query.told(run, task, figures, self._clock.now())

    def left(self, run: str, task: str) -> None:
        """Note that a task tells nothing more."""
        with self._lock:
            for query in self._queries:
                query.left(run, task, self._clock.now())

    def batch(self, batch: MicroBatch) -> None:
        with self._lock:
            found = self._streams.get(batch.run)
            if found is None:
                found = self._streams[batch.run] = RunningStream(next(self._numbers), self._clock.now())
            found.batch(batch, self._clock.now())
            while len(self._streams) > MOST_STREAMS:
                ended = (run for run, stream in self._streams.items() if not stream.is_running)
                del self._streams[next(ended, next(iter(self._streams)))]

    def stream_ended(self, run: str, error: str | None) -> None:
        """Note the end of a stream, and what it failed with."""
        with self._lock:
            if run in self._streams:
                self._streams[run].end(self._clock.now(), error)

    def queries(self) -> list[RunningQuery]:
        """Return copies of the queries, those that began last first."""
        with self._lock:
            running = [query for query in self._queries if query.is_running]
        self._refresh(running)
        with self._lock:
            now = self._clock.now()
            for query in self._queries:
                query.look(now)
            return [query.copy(now) for query in reversed(self._queries)]

    def streams(self) -> list[RunningStream]:
        """Return copies of the streams, those that began last first."""
        with self._lock:
            now = self._clock.now()
            return [stream.copy(now) for stream in reversed(self._streams.values())]

    def _refresh(self, queries: Iterable[RunningQuery]) -> None:
        """Ask for what tasks do not tell, and read it; not under the lock, for others have to tell."""
        for query in queries:
            ended = [(run, *each) for run in query.runs for each in self._finished(run).items()]
            with self._lock:
                ended = [each for each in ended if query.is_new(*each)]
                known = {id(k): k for run in query.runs if (k := self._known.get(run))}.values()
            figures = [unpacked(packed) for _, _, packed in ended]
            found = [told for each in known if (told := _asked(each.status)) is not None]
            with self._lock:
                if not query.is_running:
                    continue
                for each, read in zip(ended, figures, strict=True):
                    query.finish(*each, read)
                if found:
                    query.status = RunReport.of_parts(found)

    def _of(self, run: str, task: str) -> RunningQuery | None:
        """Return the action that a task works for; one that was cancelled has ended before its tasks do."""
        running = [query for query in self._queries if run in query.runs and query.is_running]
        found = running or [query for query in self._queries if query.awaits(run, task)]
        return found[-1] if found else None

    def _is_late(self, run: str, packed: bytes) -> bool:
        """Whether a task began before an action on its run ended: it is of that one, which was cancelled."""
        figures = unpacked(packed)
        began = self._clock.now() - (0.0 if figures is None else figures.seconds)
        return any(query.ended_after(run, began) for query in self._queries)

    def _add(self, action: str, known: list[_Known]) -> RunningQuery:
        runs = {run: name for each in known for run, name in each.runs.items()}
        if len(known) > 1 and len(set(runs.values())) < len(runs):  # names are those of one query each
            runs = {run: f"{n}: {name}" for n, each in enumerate(known, 1) for run, name in each.runs.items()}
        title = "\n".join(dict.fromkeys(each.title for each in known))
        before = {run: self._finished(run) for run in runs}
        tasks = {run: count for each in known for run, count in each.tasks.items()}
        planned = sum(tasks.values()) if tasks.keys() == runs.keys() else None
        made = RunningQuery(next(self._numbers), title, action, runs, self._clock.now(), before, planned)
        self._queries.append(made)
        while len(self._queries) > MOST_QUERIES:
            self._queries.remove(next((q for q in self._queries if not q.is_running), self._queries[0]))
        return made


class TaskFigures(Session):
    """One task of the process's board.

    Raises:
        ValueError: There is no board, so nobody looks, or too many tasks tell already.
    """

    _joined: ClassVar[int] = 0

    def __init__(self, board: Board | None, hello: JoinBoard) -> None:
        super().__init__()
        if board is None or self._joined >= _MOST_TASKS:
            raise ValueError("nobody looks, or too many tasks tell already")
        self._board, self._run, self._task = board, hello.run, hello.task
        TaskFigures._joined += 1

    def handle(self, client: int, message: Message) -> None:
        """Take figures; ValueError for any other message."""
        if not isinstance(message, Figures):
            raise ValueError("no figures of a task")  # noqa: TRY004  # it came in a message
        self._board.told(self._run, self._task, message)

    def leave(self, client: int) -> None:
        """Take note that the task tells nothing more."""
        super().leave(client)
        TaskFigures._joined -= 1
        self._board.left(self._run, self._task)


def _asked(status: Status) -> RunReport | None:
    try:
        return status()
    except MillraceError:  # the coordinator has ended, say: the rest is shown all the same
        return None
