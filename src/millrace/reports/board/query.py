"""What runs: an action on a query, by what its tasks have told, and a stream, by its latest micro-batches.

Both are bounded, whatever the number of tasks and batches. Whoever calls them holds the board's lock. What is
shown is a copy, which nobody changes, and which reads what tasks have sent when it is asked.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from millrace.engine.figures import CellFigures, Counts
from millrace.limits.messages import Figures
from millrace.reports.board.telling import rows_in
from millrace.reports.run_report import RunReport

if TYPE_CHECKING:
    from millrace.reports.micro_batch import MicroBatch

MOST_POINTS = 240
"""Points of a query over time; what is more is thinned evenly."""

MOST_TASKS = 256
"""Tasks of a query that are kept one by one; of the ones before them, sums."""

MOST_BATCHES = 120
"""Micro-batches of a stream that are kept."""

_LARGEST = 1 << 24
"""Bytes of one task's figures as JSON."""

_LONGEST = 400
"""Letters of an error's first line."""

_PAUSE = 2.0
"""Seconds without tasks after which a query is done of whose action nothing is known."""


class Series:
    """Points of one query: seconds since it began, and sums up to then.

    Times that are closer than the spacing, in seconds, replace the last one; when there are too many points,
    every second one goes and the spacing doubles. So they cover the whole time, however long it is.
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


class Running:
    """What runs, from ``began`` on, until it ends.

    Attributes:
        number: Of the action or the stream, in this process.
        title: The query, the predicates, or the stream's name.
        state: ``"running"``, ``"done"`` or ``"failed"``.
        error: First line of what it failed with.
        rows_in: That tasks have read; of a stream, those in time.
        rows_out: That eddies have given out.
    """

    def __init__(self, number: int, title: str, began: float) -> None:
        self.number, self.title = number, title
        self.state, self.error = "running", ""
        self.rows_in = self.rows_out = 0
        self._began = self._now = began
        self._ended: float | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def seconds(self) -> float:
        """Since it began, until it ended or the copy was made."""
        return max(0.0, (self._now if self._ended is None else self._ended) - self._began)

    def end(self, now: float, error: BaseException | str | None = None) -> None:
        self.state = "done" if error is None else "failed"
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        text = "" if error is None else next(iter(str(error).strip().splitlines()), "")
        self.error = ": ".join(filter(None, (kind, text)))[:_LONGEST]
        self._ended = now

    def copy(self, now: float) -> Self:
        """Return what is to be shown of it."""
        made = copy(self)
        vars(made).update(_now=now)
        return made


class _Task:
    """What a task has told last; read when it is wanted."""

    def __init__(self, told: Figures, figures: CellFigures | None = None) -> None:
        self.told, self._figures = told, figures

    def read(self) -> CellFigures | None:
        self._figures = self._figures or unpacked(self.told.packed)
        return self._figures


class RunningQuery(Running):
    """One action on a query.

    ``runs`` are names of blocks and filters by run, ``before`` figures of tasks of earlier actions, which do
    not count.

    Attributes:
        action: ``"collect"``, for example; "" where another DataFrame's action runs it.
        planned: Tasks that may tell in all; None where that is not known, or the query has ended.
        tasks: That have told.
        status: What is known beside figures.
        points: Of a copy: ``(seconds, rows in, rows out)``.
    """

    points: tuple[tuple[float, int, int], ...] = ()
    _latest_rate = 0.0

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
        super().__init__(number, title, now)
        self.action, self.runs, self.planned = action, dict(runs), planned
        self.status = RunReport()
        self.tasks = 0
        self._heard = now
        self._before = {run: dict(entries) for run, entries in before.items()}
        self._tasks: dict[tuple[str, str], _Task] = {}
        self._here: set[tuple[str, str]] = set()
        self._folded: dict[str, CellFigures] = {}  # of tasks that are not kept one by one
        self._rows: dict[tuple[str, str], tuple[int, int]] = {}  # in and out, of every task
        self._series = Series()

    def told(self, run: str, task: str, figures: Figures, now: float) -> None:
        """Note what a task tells; nothing once the action has ended."""
        (self._here.discard if figures.over else self._here.add)((run, task))
        if self.is_running:
            self._put(run, task, _Task(figures))
            self._heard = now
            self._point(now)

    def awaits(self, run: str, task: str) -> bool:
        """Tell whether a task has told something, and may tell more."""
        return (run, task) in self._here

    def ended_after(self, run: str, moment: float) -> bool:
        """Tell whether it had a run, and has ended since a moment."""
        return run in self.runs and self._ended is not None and self._ended > moment

    def left(self, run: str, task: str, now: float) -> None:
        """Note that a task tells nothing more, if it has told anything."""
        if self.awaits(run, task):
            self._here.discard((run, task))
            self._heard = now

    def is_new(self, run: str, task: str, packed: bytes) -> bool:
        """Tell whether figures of a task that has ended, as Spark brought them, are still to be noted."""
        return self.is_running and self._before.get(run, {}).get(task) is not packed

    def finish(self, run: str, task: str, packed: bytes, figures: CellFigures | None) -> None:
        """Note these figures, which have been read."""
        self._before.setdefault(run, {})[task] = packed
        if figures is not None:
            told = Figures(rows_in(figures), figures.output_tuples, True, packed)
            self._put(run, task, _Task(told, figures))

    def end(self, now: float, error: BaseException | str | None = None) -> None:
        super().end(now, error)
        self.planned = None
        self._before.clear()
        self._rows.clear()
        self._point(now)

    def look(self, now: float) -> None:
        """Take it for done if nobody knows its action and no task has been there for a while."""
        if self.is_running and not self.action and not self._here and now - self._heard > _PAUSE:
            self.end(self._heard)
        elif self.is_running:
            self._point(now)

    def copy(self, now: float) -> Self:
        made = super().copy(now)
        series = {"points": self._series.points, "_latest_rate": self._series.rate()}
        vars(made).update(_tasks=self._tasks.copy(), _folded=self._folded.copy(), **series)
        return made

    @property
    def rate(self) -> float:
        """Rows read a second, of late; of a query that has ended, over its whole time."""
        whole = self.rows_in / self.seconds if self.seconds else 0.0
        return self._latest_rate if self.is_running else whole

    @property
    def over(self) -> int:
        """Tasks that have ended, of those that have told."""
        return self.tasks - sum(not task.told.over for task in self._tasks.values())

    @cached_property  # of a copy, which does not change
    def report(self) -> RunReport:
        """Figures so far, with what is known of lookups and budgets."""
        blocks: dict[str, list[CellFigures]] = {}
        for run, folded in self._folded.items():
            blocks.setdefault(self.runs[run], []).append(folded)
        for (run, _), task in self._tasks.items():
            if (figures := task.read()) is not None:
                blocks.setdefault(self.runs[run], []).append(figures)
        return replace(self.status, blocks=blocks)

    def _put(self, run: str, task: str, latest: _Task) -> None:
        if run not in self.runs:
            return
        key, told = (run, task), latest.told
        known, before = key in self._rows, self._rows.get(key, (0, 0))
        self._rows[key] = told.rows_in, told.rows_out
        self.tasks += not known
        self.rows_in += told.rows_in - before[0]
        self.rows_out += told.rows_out - before[1]
        if known and key not in self._tasks:
            return  # only its rows are kept
        self._tasks.pop(key, None)  # what was told last stands last
        self._tasks[key] = latest
        over = len(self._tasks) - MOST_TASKS
        if over > 0:
            for each in [each for each, kept in self._tasks.items() if kept.told.over][:over]:
                self._fold(each)
        while len(self._tasks) > 4 * MOST_TASKS:  # so many at once that not all can be told of
            self._fold(next(iter(self._tasks)))

    def _fold(self, key: tuple[str, str]) -> None:
        figures = self._tasks.pop(key).read()
        if figures is not None:
            known = self._folded.get(key[0])
            self._folded[key[0]] = added([figures] if known is None else [known, figures])

    def _point(self, now: float) -> None:
        self._series.add(max(0.0, now - self._began), self.rows_in, self.rows_out)


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
    # Both ends of an exchange are among the cells, and count once only where they can be told apart.
    counts = {f.name: getattr(sums, f.name) for f in fields(Counts) if not f.name.endswith("_exchanged")}
    return CellFigures(
        cell=0,
        seconds=sums.worker_seconds,
        modules=tuple(one for _, one in whole.modules()),
        orders=tuple((one.order, one.tuples) for one in whole.orders()),
        state=tuple(one for _, one in whole.state()),
        joins=tuple(one for _, one in whole.joins()),
        **counts,
    )


class RunningStream(Running):
    """One run of a streaming query, from its first micro-batch on; its sums are those of all that were told.

    Attributes:
        late: Rows that came too late.
    """

    def __init__(self, number: int, now: float) -> None:
        super().__init__(number, "", now)
        self.late = 0
        self._batches: deque[tuple[float, MicroBatch]] = deque(maxlen=MOST_BATCHES)

    def batch(self, batch: MicroBatch, now: float) -> None:
        self.title = batch.name or batch.query
        self._batches.append((now, batch))
        self.rows_in += batch.rows
        self.late += batch.late
        self.rows_out += batch.results

    def copy(self, now: float) -> Self:
        made = super().copy(now)
        vars(made).update(_batches=self._batches.copy())
        return made

    @property
    def batches(self) -> tuple[MicroBatch, ...]:
        """The latest ones, the oldest first; at least one."""
        return tuple(batch for _, batch in self._batches)

    @property
    def rate(self) -> float:
        """Rows a second in these."""
        (first, begin), (last, _) = self._batches[0], self._batches[-1]
        span = last - first + begin.seconds
        return sum(batch.rows for batch in self.batches) / span if span > 0 else 0.0
