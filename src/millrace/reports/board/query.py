"""One action on a query: what its tasks have told, bounded whatever their number."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from millrace.engine.figures import CellFigures
from millrace.reports.board.telling import rows_in
from millrace.reports.run_report import RunReport

MOST_POINTS = 240
"""Points of a query over time; what is more is thinned evenly."""

MOST_TASKS = 256
"""Tasks of a query that are kept one by one; of the ones before them, sums."""

_LARGEST = 1 << 24
"""Bytes of one task's figures as JSON."""

_LONGEST = 400
"""Letters of an error's first line."""

_PAUSE = 2.0
"""Seconds without tasks after which a query is done of whose action nothing is known."""


class Series:
    """Points of one query: seconds since it began, and sums up to then.

    Times that are closer than the spacing of the points replace the last one; when there are too many, every
    second one goes and the spacing doubles. So they cover the whole time, however long it is.

    Args:
        most: Points that are kept.
        spacing: Seconds between points at first.
    """

    def __init__(self, most: int = MOST_POINTS, spacing: float = 0.25) -> None:
        if most < 4:
            raise ValueError(f"{most} points, expected at least 4")
        self._most, self._spacing = most, spacing
        self._points: list[tuple[float, int, int]] = []

    def add(self, seconds: float, rows_in: int, rows_out: int) -> None:
        """Add a point; one of an earlier time than the last counts as of that."""
        points = self._points
        point = (max(round(seconds, 3), points[-1][0] if points else 0.0), rows_in, rows_out)
        # The last point moves along until it is far enough from the one before.
        same = bool(points) and points[-1][0] == point[0]
        if same or (len(points) > 1 and points[-1][0] - points[-2][0] < self._spacing):
            points[-1] = point
        else:
            points.append(point)
        while len(points) > self._most:
            self._points = points = [*points[:-1:2], points[-1]]
            self._spacing *= 2

    @property
    def points(self) -> tuple[tuple[float, int, int], ...]:
        """``(seconds, rows read, rows given out)``, in the order of time."""
        return tuple(self._points)

    def rate(self, over: float = 5.0) -> float:
        """Return rows read a second, over the last so many seconds."""
        if len(self._points) < 2:
            return 0.0
        last = self._points[-1]
        first = next((p for p in reversed(self._points[:-1]) if last[0] - p[0] >= over), self._points[0])
        span = last[0] - first[0]
        return (last[1] - first[1]) / span if span > 0 else 0.0


@dataclass(frozen=True)
class QueryView:
    """A query as it is shown.

    Attributes:
        number: Of the action, in this process.
        title: The query, or the predicates.
        action: ``"collect"``, for example; "" where another DataFrame's action runs it.
        state: ``"running"``, ``"done"`` or ``"failed"``.
        error: First line of what it failed with.
        seconds: Since it began, until it ended.
        rows_in: Rows that tasks have read.
        rows_out: Rows that eddies have given out.
        rate: Rows read a second, of late; of a query that has ended, over its whole time.
        tasks: Tasks that have told.
        over: Of these, the ones that have ended.
        planned: Tasks that may tell in all; None where that is not known, or the query has ended.
        points: ``(seconds, rows_in, rows_out)`` over time.
        report: Figures so far, with what is known of lookups and budgets.
    """

    number: int
    title: str
    action: str
    state: str
    error: str
    seconds: float
    rows_in: int
    rows_out: int
    rate: float
    tasks: int
    over: int
    planned: int | None
    points: tuple[tuple[float, int, int], ...]
    report: RunReport


@dataclass
class _Task:
    rows_in: int
    rows_out: int
    packed: bytes
    over: bool
    read: CellFigures | None = None


@dataclass(frozen=True)
class _Sum:
    """Of tasks that are not kept one by one."""

    tasks: int = 0
    rows_in: int = 0
    rows_out: int = 0


class Running:
    """One action on a query, from its beginning on; whoever calls holds the board's lock.

    Args:
        action: The action's name, "" for none that is known.
        runs: Names of blocks and filters by run.
        now: When it begins.
        before: By run, figures of tasks of earlier actions, which do not count.
        planned: Tasks of all its runs, at most; None where that is not known.
    """

    def __init__(
        self,
        number: int,
        title: str,
        action: str,
        runs: Mapping[str, str],
        now: float,
        before: Mapping[str, Mapping[str, bytes]],
        planned: int | None = None,
    ) -> None:
        self.number, self.title, self.action, self.runs = number, title, action, dict(runs)
        self.state, self.error = "running", ""
        self.report = RunReport()
        self._planned = planned
        self._began = self._heard = now
        self._ended: float | None = None
        self._before = {run: dict(entries) for run, entries in before.items()}
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._here: set[tuple[str, str]] = set()
        self._folded: dict[str, CellFigures] = {}
        self._gone: dict[tuple[str, str], tuple[int, int]] = {}  # rows in and out of the tasks in the sum
        self._sum = _Sum()
        self._series = Series()

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def told(self, run: str, task: str, figures: tuple[int, int, bytes], now: float, *, over: bool) -> None:
        """Note what a task tells: rows in and out, and its figures; nothing once the action has ended."""
        (self._here.discard if over else self._here.add)((run, task))
        if self.is_running:
            self._put(run, task, _Task(*figures, over))
            self._heard = now
            self._point(now)

    def awaits(self, run: str, task: str) -> bool:
        """Tell whether a task has told something, and may tell more."""
        return (run, task) in self._here

    def left(self, run: str, task: str, now: float) -> None:
        """Note that a task tells nothing more, if it has told anything."""
        if self.awaits(run, task):
            self._here.discard((run, task))
            self._heard = now

    def finished(self, run: str, entries: Mapping[str, bytes], now: float) -> None:
        """Note the figures of tasks that have ended, as Spark brought them."""
        before = self._before.setdefault(run, {})
        for task, packed in entries.items():
            if before.get(task) is not packed:
                before[task] = packed
                figures = unpacked(packed)
                if figures is not None:
                    one = _Task(rows_in(figures), figures.output_tuples, packed, over=True, read=figures)
                    self._put(run, task, one)
        self._point(now)

    def end(self, now: float, error: BaseException | None = None) -> None:
        self.state = "done" if error is None else "failed"
        self.error = "" if error is None else first_line(error)
        self._ended = now
        self._before.clear()
        self._gone.clear()
        self._point(now)

    def look(self, now: float) -> None:
        """Take it for done if nobody knows its action and no task has been there for a while."""
        if self.is_running and not self.action and not self._here and now - self._heard > _PAUSE:
            self.end(self._heard)

    def view(self, now: float) -> QueryView:
        if self.is_running:
            self._point(now)
        seconds = (now if self._ended is None else self._ended) - self._began
        sums = self._sums()
        whole = sums.rows_in / seconds if seconds > 0 else 0.0
        blocks: dict[str, list[CellFigures]] = {self.runs[run]: [cell] for run, cell in self._folded.items()}
        for (run, _), task in self._tasks.items():
            task.read = task.read or unpacked(task.packed)
            if task.read is not None:
                blocks.setdefault(self.runs[run], []).append(task.read)
        ended = sum(task.over for task in self._tasks.values()) + self._sum.tasks
        return QueryView(
            self.number,
            self.title,
            self.action,
            self.state,
            self.error,
            max(0.0, seconds),
            sums.rows_in,
            sums.rows_out,
            self._series.rate() if self.is_running else whole,
            sums.tasks,
            ended,
            self._planned if self.is_running else None,
            self._series.points,
            replace(self.report, blocks=blocks),
        )

    def _put(self, run: str, task: str, told: _Task) -> None:
        if run not in self.runs:
            return
        if (run, task) in self._gone:
            rows_in, rows_out = self._gone[run, task]
            self._add_up(0, told.rows_in - rows_in, told.rows_out - rows_out)
            self._gone[run, task] = told.rows_in, told.rows_out
            return
        self._tasks.pop((run, task), None)  # what was told last stands last
        self._tasks[run, task] = told
        over = len(self._tasks) - MOST_TASKS
        if over > 0:
            for key in [key for key, each in self._tasks.items() if each.over][:over]:
                self._fold(key)
        while len(self._tasks) > 4 * MOST_TASKS:  # so many at once that not all can be told of
            self._fold(next(iter(self._tasks)))

    def _fold(self, key: tuple[str, str]) -> None:
        task = self._tasks.pop(key)
        self._gone[key] = task.rows_in, task.rows_out
        self._add_up(1, task.rows_in, task.rows_out)
        figures = task.read or unpacked(task.packed)
        if figures is not None:
            known = self._folded.get(key[0])
            self._folded[key[0]] = added([figures] if known is None else [known, figures])

    def _add_up(self, tasks: int, rows_in: int, rows_out: int) -> None:
        sums = self._sum
        self._sum = _Sum(sums.tasks + tasks, sums.rows_in + rows_in, sums.rows_out + rows_out)

    def _sums(self) -> _Sum:
        tasks, folded = self._tasks.values(), self._sum
        return _Sum(
            folded.tasks + len(tasks),
            folded.rows_in + sum(task.rows_in for task in tasks),
            folded.rows_out + sum(task.rows_out for task in tasks),
        )

    def _point(self, now: float) -> None:
        sums = self._sums()
        self._series.add(max(0.0, now - self._began), sums.rows_in, sums.rows_out)


def first_line(error: BaseException | str) -> str:
    """Return the first line of an error that says something, shortened, with its type before it."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = "" if isinstance(error, str) else type(error).__name__
    told = ": ".join(each for each in (kind, text) if each)
    return told if len(told) <= _LONGEST else told[: _LONGEST - 1] + "…"


def unpacked(packed: bytes) -> CellFigures | None:
    """Return the figures that a task sent, None if they are none or too large."""
    try:
        text = zlib.decompressobj().decompress(packed, _LARGEST)
        return CellFigures.from_json(text.decode())
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, json.JSONDecodeError):
        return None


def added(cells: Iterable[CellFigures]) -> CellFigures:
    """Return the sums of several tasks' figures, without what happened when."""
    whole = RunReport({"": cells})
    sums = whole.totals
    return CellFigures(
        cell=0,
        seconds=sums.worker_seconds,
        modules=tuple(one for _, one in whole.modules()),
        orders=tuple((one.order, one.tuples) for one in whole.orders()),
        tuples_routed=sums.tuples_routed,
        intermediate_tuples=sums.intermediate_tuples,
        output_tuples=sums.output_tuples,
        peak_bytes=sums.peak_bytes,
        state=tuple(one for _, one in whole.state()),
        peak_state=sums.peak_state,
        migrated_tuples=sums.migrated_tuples,
        recomputed_tuples=sums.recomputed_tuples,
        spilled_bytes=sums.spilled_bytes,
        returned_bytes=sums.returned_bytes,
        joins=tuple(one for _, one in whole.joins()),
    )


Beside = Callable[[], RunReport | None]
"""Returns what is known beside figures: the plan, lookups, budgets; None once the query is gone."""
