"""The coordinator: where all tasks of a job agree on their limits, and share what they looked up."""

from __future__ import annotations

import asyncio
import atexit
import math
import os
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

from millrace.errors import ExecutionError, OptionError
from millrace.limits.budget import Spent
from millrace.limits.cache import check_cache
from millrace.limits.clock import Clock, WallClock
from millrace.limits.drivers import DRIVERS, Driver
from millrace.limits.ledger import Spendings, stream_in
from millrace.limits.lookup_session import LookupSession
from millrace.limits.messages import Hello, Join, JoinDriver
from millrace.limits.permits import Permits
from millrace.limits.progress import MOST_FAILED, NOTHING, FailedKey, LookupProgress, together
from millrace.limits.registration import Registration, Settings
from millrace.limits.server import Server
from millrace.limits.session import Session

# Of each planning process, so that none can push out what another one needs. All else is kept with its run.
_MOST_EMPTY_SESSIONS = 16
_MOST_RELEASED = 64
"""Runs that are kept although nothing refers to their queries: DataFrames derived from them may still run."""

_AWAY_SECONDS = 300.0
"""Until what a planning process elsewhere has registered is forgotten, if it does not join again."""


class _Ended(NamedTuple):
    """What is still to be told of a lookup's sessions that are closed: a stream has one a micro-batch."""

    progress: LookupProgress
    failed: list[FailedKey]

    def and_of(self, progress: LookupProgress, failed: list[FailedKey]) -> _Ended:
        """Return the same with one session more."""
        both = [self.progress, replace(progress, rate=0.0, in_flight=0)]
        return _Ended(together(both), list(dict.fromkeys(self.failed + failed))[:MOST_FAILED])


class Coordinator(Server):
    """Serves the limits and the lookups of any number of jobs until it is closed or the process ends.

    See :class:`~millrace.limits.shared.Shared` for where it listens. ``calendar`` tells seconds since 1970,
    by which rows in caches expire; None for the system's clock. ``clock`` tells how long planning processes
    have been away. With a ``secret`` it also serves those that have the same one, see
    :mod:`millrace.limits.drivers`.

    Raises:
        ExecutionError: It cannot listen.
        InputError: The secret is too short.
    """

    purpose: ClassVar[str] = "limits"

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        bind: str | None = None,
        *,
        calendar: Clock | None = None,
        clock: Clock | None = None,
        secret: str | None = None,
    ) -> None:
        self._registrations: dict[str, tuple[Registration, ...]] = {}
        self._drivers: dict[str, Driver] = {}
        self._owners: dict[str, str] = {}  # the planning process elsewhere of each run, empty for this one
        self._released: OrderedDict[str, None] = OrderedDict()
        self._sessions: OrderedDict[str, LookupSession] = OrderedDict()
        self._ended: dict[str, _Ended] = {}  # by run/number
        self._spent = Spendings()
        self._groups: dict[str, Permits] = {}
        self._retiring: set[str] = set()
        self._closing: dict[asyncio.Task[None], LookupSession | None] = {}
        self._calendar = calendar
        self._clock = clock or WallClock()
        self._folders: dict[str, TemporaryDirectory[str]] = {}  # by run
        super().__init__(host, port, bind, secret=secret)
        atexit.register(_close, weakref.ref(self), os.getpid())

    def register(self, run: str, lookups: Sequence[Registration], driver: str = "") -> None:
        """Register the lookups of a run before its tasks join them as ``run/execution/number``.

        Executions of a stream begin with :data:`~millrace.limits.registration.STREAM` and its id. A lookup's
        number is its position. The run has no slash. ``driver`` names a planning process elsewhere.

        Raises:
            InputError: A cache cannot be used; says what to do.
            OptionError: The limits of a group are not the same, or not those of queries that are running.
            ValueError: The run is registered with other lookups, or its name has a slash.
        """
        if "/" in run:
            raise ValueError(f"the run's name {run!r} has a slash")
        groups: dict[str, dict[Settings, None]] = {}
        for each in lookups:
            if each.cache is not None:
                check_cache(each.cache)
            if each.group is not None:
                groups.setdefault(each.group, {})[each.settings] = None

        for group, settings in groups.items():
            if len(settings) > 1:
                raise OptionError(
                    f"limit_group {group!r} has different limits ({'; '.join(map(str, settings))}): give all "
                    "of a group the same"
                )

        def enter() -> None:
            for each in lookups:
                if each.group is not None:
                    self._permits(run, each)
            if self._registrations.setdefault(run, tuple(lookups)) != tuple(lookups):
                raise ValueError(f"run {run!r} has other lookups")
            self._owners[run] = driver
            self._released.pop(run, None)

        self._within(enter)

    def progress(self, run: str) -> list[LookupProgress]:
        """Return how far each lookup of a run is, over all its executions; empty for an unknown run."""

        def figures() -> list[LookupProgress]:
            return [
                replace(together(self._known(run, number) or [NOTHING]), name=each.name)
                for number, each in enumerate(self._registrations.get(run, ()))
            ]

        return self._within(figures)

    def spent(self, run: str) -> list[Spent]:
        """Return what a run's lookups and predicates have spent of their budgets, each group once."""

        def collect() -> list[Spent]:
            found: dict[str, list[Spent]] = {}
            for number, each in enumerate(self._registrations.get(run, ())):
                if each.budget and each.group is not None and each.group in self._groups:
                    spending = self._groups[each.group].spending
                    found[each.group] = [spending.spent(f"limit_group {each.group}")]
                elif each.budget:
                    found[f"/{number}"] = self._spent.spent(run, number, each)
            return [each for some in found.values() for each in some]

        return self._within(collect)

    def failed(self, run: str) -> list[FailedKey]:
        """Return the keys of a run that could not be looked up, the first 10,000 of each lookup.

        The others are in :attr:`~millrace.limits.progress.LookupProgress.failures`, by kind.
        """

        async def collect() -> list[FailedKey]:
            numbers = range(len(self._registrations.get(run, ())))
            waiting = [each.failed_later() for number in numbers for each in self._sessions_of(run, number)]
            failed = [
                key
                for number in numbers
                for name, each in self._ended.items()
                if _is_of(name, run, number)
                for key in each.failed
            ]
            for each in waiting:
                failed += await each
            return list(dict.fromkeys(failed))

        return self._finish(collect())

    def release(self, run: str) -> None:
        """Take note that nothing refers to a run's query any more; does not wait, and may be called anywhere.

        The latest of such runs are kept, and those whose tasks still run; the others are forgotten.
        """

        def released() -> None:
            if run in self._registrations:
                self._released[run] = None
                self._trim()

        if self.running:
            with suppress(RuntimeError):  # it has just been closed
                self._loop.call_soon_threadsafe(released)

    def stop(self, runs: Mapping[str, float]) -> None:
        """Let tasks of runs ask nothing more: their actions are over.

        Streams may go on, later actions too, and those that were there before: a query by the name of a view
        is an action that nobody here hears of. ``runs`` is when the action began of each that is over, by
        :func:`time.monotonic`.
        """

        def stop() -> None:
            for name, session in self._sessions.items():
                if session.made >= runs.get(_run_of(name), math.inf) and not stream_in(name):
                    session.stop()

        self._within(stop)

    def _forget(self, run: str) -> None:
        """Remove a run's answers and secrets."""
        del self._registrations[run], self._owners[run]
        self._released.pop(run, None)
        for name in [name for name in self._sessions if _run_of(name) == run]:
            self._close(self._sessions.pop(name))
        for name in [name for name in self._ended if _run_of(name) == run]:
            del self._ended[name]
        for name in [name for name in self._groups if name.startswith(f"/{run}/")]:
            del self._groups[name]
        self._spent.forget(run)
        if run in self._folders:
            self._later(_remove(self._folders.pop(run), set(self._closing)))

    def _close(self, session: LookupSession) -> None:
        """Close a session, whose thread may still write for a while."""
        session.close()
        self._later(session.wait_closed(), session)

    def _later(self, work: Coroutine[Any, Any, None], closing: LookupSession | None = None) -> None:
        task = self._loop.create_task(work)
        self._closing[task] = closing
        task.add_done_callback(self._closing.pop)

    def _trim(self) -> None:
        """Forget the runs that were released first, beyond those that are kept, and those of nobody."""
        working = {_run_of(name) for name, session in self._sessions.items() if not session.empty}
        since = self._clock.now() - _AWAY_SECONDS
        away = {name for name, driver in self._drivers.items() if driver.empty and driver.seen <= since}
        left = [run for run, driver in self._owners.items() if driver in away and run not in working]
        for run in {*left, *self._beyond(self._released, _MOST_RELEASED, working)}:
            self._forget(run)
        for name in away.difference(self._owners.values()):
            self._drivers.pop(name).close()

    def _beyond(self, names: Collection[str], most: int, needed: Collection[str] = ()) -> list[str]:
        """Return the first names of runs or sessions of each planning process, so that as many are left.

        Those that are needed stay, and count.
        """
        left = Counter(self._owners[_run_of(name)] for name in names)
        beyond = []
        for name in names:
            owner = self._owners[_run_of(name)]
            if left[owner] > most and name not in needed:
                left[owner] -= 1
                beyond.append(name)
        return beyond

    def _scope(self, hello: Hello) -> str:
        return _run_of(hello.session) if isinstance(hello, Join) else DRIVERS

    def _enter(self, hello: Hello) -> tuple[str, Session]:
        match hello:
            case JoinDriver(driver=name):
                if name not in self._drivers:
                    self._drivers[name] = Driver(self, name, self._clock, self._loop)
                return name, self._drivers[name]
            case Join(session=namespace):
                registration = self._registered(namespace)
            case _:
                raise ValueError("it wants no lookup")
        if namespace not in self._sessions:
            self._sessions[namespace] = LookupSession(
                registration,
                self._calendar,
                permits=self._permits(namespace, registration),
                source=_source_of(namespace),
                after=self._writing(registration),
                loop=self._loop,
            )
        return namespace, self._sessions[namespace]

    def _permits(self, namespace: str, registration: Registration) -> Permits:
        """Return the permits of a lookup or predicate, in all executions of its run, or of its group.

        Those of a group stay as long as this coordinator, for its budget is of all queries.

        Raises:
            OptionError: Others are using the group with other limits.
        """
        settings, group = registration.settings, registration.group
        spending = None if group is not None else self._spent.of(namespace, registration)
        if group is None:
            group = f"/{_source_of(namespace)}"
        permits = self._groups.get(group)
        if permits is None or (permits.settings != settings and permits.empty):
            permits = self._groups[group] = Permits(settings, None, spending)
        if permits.settings != settings:
            raise OptionError(
                f"limit_group {group!r} has {permits.settings}, and queries that are running use them; "
                f"{registration.name!r} has {settings}: give all of a group the same limits"
            )
        return permits

    def _registered(self, namespace: str) -> Registration:
        run, _, rest = namespace.partition("/")
        number = rest.rpartition("/")[2]
        registrations = self._registrations.get(run)
        if registrations is None:
            raise ValueError(
                f"run {run!r} is not known, or is over: its query was planned long ago and nothing refers to "
                "it, or the process that planned it has been away for long, or this coordinator was started "
                "after that; keep what millrace returned while DataFrames derived from it run, or plan it "
                "again"
            )
        if not number.isascii() or not number.isdigit() or int(number) >= len(registrations):
            raise ValueError(f"run {run!r} has {len(registrations)} lookups, got {namespace!r}")
        found = registrations[int(number)]
        if found.cache is None and found.fingerprint and stream_in(namespace):
            return replace(found, cache=self._folder_of(run))
        return found

    def _folder_of(self, run: str) -> Path:
        """Return the folder for answers to streams that name none, from one micro-batch to the next."""
        if run not in self._folders:
            self._folders[run] = TemporaryDirectory(prefix="millrace-stream-", ignore_cleanup_errors=True)
        return Path(self._folders[run].name)

    def _writing(self, registration: Registration) -> list[Future[None]]:
        """Return what others of the same cache still write: a job that failed may be run again at once."""
        if registration.cache is None:
            return []
        others = [*self._sessions.values(), *(each for each in self._closing.values() if each is not None)]
        return [
            each.written() for each in others if each.registration.fingerprint == registration.fingerprint
        ]

    def _known(self, run: str, number: int) -> list[LookupProgress]:
        """Return the progress of a lookup, by execution, with those that have ended first."""
        ended = [each.progress for name, each in self._ended.items() if _is_of(name, run, number)]
        return ended + [session.progress() for session in self._sessions_of(run, number)]

    def _sessions_of(self, run: str, number: int) -> list[LookupSession]:
        return [session for name, session in self._sessions.items() if _is_of(name, run, number)]

    def _left(self, name: str) -> None:
        """Keep the sessions that were left last, for jobs with pauses between their tasks."""
        if name not in self._sessions:
            return
        self._sessions.move_to_end(name)
        if self._sessions[name].empty:
            self._spent.settle(name, self._sessions[name].registration)
        empty = [each for each, session in self._sessions.items() if session.empty]
        over = self._beyond(empty, _MOST_EMPTY_SESSIONS)
        if stream_in(name) and self._sessions[name].registration.cache is None:  # a scan, which may be large
            same = [each for each in self._sessions if _source_of(each) == _source_of(name)]
            same.remove(max(same, key=lambda each: self._sessions[each].made))
            over += [each for each in same if each in empty]
        for each in over:
            if each not in self._retiring:
                self._retiring.add(each)
                self._later(self._retire(each))

    async def _retire(self, name: str) -> None:
        """Close a session and keep what is to be told of it, unless somebody joins it first."""
        try:
            session = self._sessions[name]
            failed: list[FailedKey] = []
            with suppress(ExecutionError):  # the session has broken, and has told why
                failed = await session.failed_later()
            if self._sessions.get(name) is session and session.empty:
                del self._sessions[name]
                lookup = f"{_run_of(name)}/{name.rpartition('/')[2]}"
                before = self._ended.get(lookup, _Ended(NOTHING, []))
                self._ended[lookup] = before.and_of(session.progress(), failed)
                self._close(session)
        finally:
            self._retiring.discard(name)

    def _look(self) -> None:
        self._trim()

    async def _end(self) -> None:
        self._try(self._spent.close)
        for session in self._sessions.values():
            self._close(session)
        while self._closing:
            await asyncio.wait(set(self._closing))
        for folder in self._folders.values():
            self._try(folder.cleanup)
        for driver in self._drivers.values():
            driver.close()


async def _remove(folder: TemporaryDirectory[str], writing: set[asyncio.Task[None]]) -> None:
    """Remove a folder of answers when the sessions that may write to it are closed."""
    if writing:
        await asyncio.wait(writing)
    await asyncio.to_thread(folder.cleanup)


def _run_of(name: str) -> str:
    return name.partition("/")[0]


def _source_of(name: str) -> str:
    """Return what a session asks, the same in all executions of its run, or of its stream in that run."""
    return f"{_run_of(name)}/{stream_in(name)}/{name.rpartition('/')[2]}"


def _is_of(name: str, run: str, number: int) -> bool:
    return _run_of(name) == run and name.rpartition("/")[2] == str(number)


def _close(coordinator: weakref.ref[Coordinator], process: int) -> None:
    """At the end of a process, let what was said be written; a forked child has no part in it."""
    found = coordinator()
    if found is not None and process == os.getpid():
        found.close()
