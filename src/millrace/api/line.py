"""One line of what a session does: what stands in it, and who may show it, for there is room for one."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from millrace.reports.run_report import RunReport
from millrace.spark.handles import latest

if TYPE_CHECKING:
    from millrace.limits.progress import LookupProgress

EVERY = 0.5
"""Seconds between two lines."""

_LONGEST = 60
"""Letters of an order."""

_SOON = 0.25
"""Of the tasks: what has to be done before the rest is guessed from it."""

_room = threading.Lock()

Write = Callable[[str, bool], None]
"""Shows a line in the place of the one before; the last one is marked."""


class Watch:
    """What has been done since it was made.

    Args:
        clock: Gives seconds.
        before: Seconds that count from before it was made.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, before: float = 0.0) -> None:
        self._clock = clock
        self._began = clock() - before
        self._before = {id(handle): _seen(report) for handle, report in _reports()}
        self._tasks = (0, 0)
        self._planned = 0
        self._lock = threading.Lock()

    def tasks(self, total: int, finished: int) -> None:
        """Note the counts of tasks, which never fall."""
        with self._lock:
            self._tasks = max(total, self._tasks[0]), max(finished, self._tasks[1])

    def expect(self, tasks: int) -> None:
        """Note that an action has so many tasks; Spark tells of them when their stage begins."""
        with self._lock:
            self._planned += tasks

    def line(self) -> str:
        """Return the line."""
        seconds = max(self._clock() - self._began, 1e-3)
        total, finished = max(self._tasks[0], self._planned), self._tasks[1]
        parts = [f"{finished:,} of {total:,} tasks"] if total else []
        if total == self._planned and _SOON * total <= finished < total:  # no more are to come
            parts.append(f"about {seconds * (total - finished) / finished:,.0f} s left")
        reports = [report for handle, report in _reports() if self._before.get(id(handle)) != _seen(report)]
        if reports:
            rows = sum(report.totals.output_tuples for report in reports)
            parts.append(f"{rows:,} rows, {rows / seconds:,.0f} a second")
            orders = reports[-1].orders()
            if orders:
                best = max(orders, key=lambda order: order.tuples)
                shown = best.order if len(best.order) <= _LONGEST else best.order[: _LONGEST - 1] + "…"
                parts.append(f"{shown} ({best.share:.0%})")
        for handle in latest()[-1:]:
            with suppress(MillraceError):  # who knew has ended, and the line says the rest
                parts += [lookup_line(one) for one in getattr(handle, "lookups", list)() if one.in_flight]
        return " · ".join([f"{seconds:.1f} s", *parts])


def lookup_line(one: LookupProgress) -> str:
    """Return how far a lookup is, in words."""
    text = f"{one.name}: {one.done:,} of {one.keys:,} keys"
    parts = ((one.cached, "cached"), (one.failed, "failed"), (one.in_flight, "in flight"))
    text += "".join(f", {count:,} {what}" for count, what in parts if count)
    return text + (f", {one.rate:,.0f} a second" if one.rate else "")


def _reports() -> Iterator[tuple[Any, RunReport]]:
    for handle in latest():
        try:
            yield handle, handle.report()
        except MillraceError:  # nothing has run yet
            continue


def _seen(report: RunReport) -> tuple[int, int, float]:
    sums = report.totals
    return sums.cells, sums.output_tuples, sums.worker_seconds


@contextmanager
def room() -> Iterator[bool]:
    """Tell the body whether it may show a line, or something else in its place; nobody else does then."""
    free = _room.acquire(blocking=False)
    try:
        yield free
    finally:
        if free:
            _room.release()


def is_notebook() -> bool:
    """Whether this runs in a kernel, below whose cells things are shown."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


def is_seen() -> bool:
    """Whether somebody would see a line."""
    return is_notebook() or sys.stderr.isatty()


def writer(*, anywhere: bool) -> Write | None:
    """Return what shows lines here, None where nobody would see them."""
    if is_notebook():
        return _notebook()
    return _terminal if anywhere or sys.stderr.isatty() else None


def _terminal(line: str, last: bool) -> None:  # noqa: FBT001  # one of two kinds of line
    sys.stderr.write(f"\r{line}\x1b[K" + ("\n" if last else ""))
    sys.stderr.flush()


def _notebook() -> Write:
    display: Any = import_module("IPython.display").display
    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line, _last: handle.update({"text/plain": line}, raw=True)
