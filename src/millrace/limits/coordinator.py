"""The coordinator: where all tasks of a job agree on their limits, and share what they looked up."""

from __future__ import annotations

import atexit
import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from millrace.clock import Clock
from millrace.limits import wire
from millrace.limits.address import Settings
from millrace.limits.cache import check_cache
from millrace.limits.lookup_room import LookupRoom
from millrace.limits.offer import Offer
from millrace.limits.progress import FailedKey, LookupProgress, together
from millrace.limits.room import Room
from millrace.limits.rooms import AnyRoom
from millrace.limits.server import Server

_MOST_EMPTY_ROOMS = 16
_MOST_ENDED = 256


class _Ended(NamedTuple):
    """What is still to be told of a lookup whose room is closed."""

    progress: LookupProgress
    failed: list[FailedKey]


class Coordinator(Server):
    """Serves the limits and the lookups of any number of jobs until it is closed or the process ends.

    Args:
        host: What the clients shall connect to. A loopback address keeps it to this machine. It listens on
            just this address if that is one of this machine's, and on all otherwise (a driver behind
            an address translation).
        calendar: Tells seconds since 1970, by which rows in caches expire; the system's clock by default.

    Attributes:
        address: Where the clients find it.

    Raises:
        ExecutionError: It cannot listen.
    """

    purpose: ClassVar[str] = "limits"

    def __init__(self, host: str = "127.0.0.1", calendar: Clock | None = None) -> None:
        self._rooms: OrderedDict[str, Room] = OrderedDict()
        self._offers: dict[str, tuple[Offer, ...]] = {}
        self._lookups: OrderedDict[str, LookupRoom] = OrderedDict()
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._calendar = calendar
        super().__init__(host)
        atexit.register(_close, weakref.ref(self), os.getpid())

    def in_flight(self, namespace: str) -> int:
        """Return how many permits of a predicate's namespace are out now."""

        def count() -> int:
            room = self._rooms.get(namespace)
            return 0 if room is None else room.in_flight

        return self._within(count)

    def offer(self, run: str, lookups: Sequence[Offer]) -> None:
        """Register the lookups of a run before its tasks join them as ``run/execution/number``.

        Args:
            run: Identifies the run; has no slash.
            lookups: The lookups; a lookup's number is its position.

        Raises:
            InputError: A cache cannot be used; says what to do.
            ValueError: The run is registered with other lookups, or its name has a slash.
        """
        if "/" in run:
            raise ValueError(f"the run's name {run!r} has a slash")
        for each in lookups:
            if each.cache is not None:
                check_cache(each.cache, each.name, each.fingerprint)

        def register() -> None:
            if self._offers.setdefault(run, tuple(lookups)) != tuple(lookups):
                raise ValueError(f"run {run!r} has other lookups")

        self._within(register)

    def progress(self, run: str) -> list[LookupProgress]:
        """Return how far each lookup of a run is, over all its executions; empty for an unknown run."""

        def figures() -> list[LookupProgress]:
            return [
                together(
                    [each.progress for each in self._known(run, number)]
                    or [LookupProgress(offer.name, 0, 0, 0, 0, 0, 0, 0, 0.0)]
                )
                for number, offer in enumerate(self._offers.get(run, ()))
            ]

        return self._within(figures)

    def failed(self, run: str) -> list[FailedKey]:
        """Return the keys of a run that could not be looked up, the first 10,000 of each lookup.

        The others are in :attr:`~millrace.limits.progress.LookupProgress.failures`, by kind.
        """

        def collect() -> list[FailedKey]:
            known = (each for n in range(len(self._offers.get(run, ()))) for each in self._known(run, n))
            return list(dict.fromkeys(failed for each in known for failed in each.failed))

        return self._within(collect)

    def forget(self, run: str) -> None:
        """Write what is missing to the caches, and remove a run's answers, if it is known."""

        def forget() -> None:
            self._offers.pop(run, None)
            for name in [name for name in self._lookups if _run_of(name) == run]:
                self._lookups.pop(name).close()
            for name in [name for name in self._ended if _run_of(name) == run]:
                del self._ended[name]

        if self.running:
            self._within(forget)

    def _enter(self, hello: wire.Message) -> tuple[str, AnyRoom]:
        match hello:
            case {"lookup": str(namespace)}:
                return namespace, self._lookup(namespace)
            case {
                "namespace": str(namespace),
                "max_in_flight": int() | None as cap,
                "per_second": float() | int() | None as rate,
            } if (cap is None or cap > 0) and (rate is None or rate > 0):
                settings = Settings(cap, rate)
            case _:
                raise ValueError("it did not introduce itself")
        room = self._rooms.setdefault(namespace, Room(settings))
        if room.settings != settings:
            raise ValueError(f"{namespace} has {room.settings}, got {settings}")
        return namespace, room

    def _lookup(self, namespace: str) -> LookupRoom:
        run, _, rest = namespace.partition("/")
        number = rest.rpartition("/")[2]
        offers = self._offers.get(run)
        if offers is None:
            raise ValueError(f"run {run!r} is not known, or is over")
        if not number.isascii() or not number.isdigit() or int(number) >= len(offers):
            raise ValueError(f"run {run!r} has {len(offers)} lookups, got {namespace!r}")
        if namespace not in self._lookups:
            self._lookups[namespace] = LookupRoom(offers[int(number)], self._calendar)
        return self._lookups[namespace]

    def _known(self, run: str, number: int) -> list[_Ended]:
        """Return what there is to tell of a lookup, by execution, with those that have ended first."""

        def mine(name: str) -> bool:
            return _run_of(name) == run and name.rpartition("/")[2] == str(number)

        ended = [each for name, each in self._ended.items() if mine(name)]
        rooms = [room for name, room in self._lookups.items() if mine(name)]
        return [*ended, *(_Ended(room.progress(), room.failed()) for room in rooms)]

    def _left(self, name: str) -> None:
        """Keep the rooms that were left last, for jobs with pauses between their tasks."""
        rooms: OrderedDict[str, Any] = self._lookups if name in self._lookups else self._rooms
        if name not in rooms:
            return
        rooms.move_to_end(name)
        empty = [each for each, room in rooms.items() if room.empty]
        for each in empty[:-_MOST_EMPTY_ROOMS]:
            room = rooms.pop(each)
            if isinstance(room, LookupRoom):
                self._ended[each] = _Ended(room.progress(), room.failed())
                room.close()
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _end(self) -> None:
        for room in self._lookups.values():
            room.close()


def _run_of(name: str) -> str:
    return name.partition("/")[0]


def _close(coordinator: weakref.ref[Coordinator], process: int) -> None:
    """At the end of a process, let the caches have what they lack; a forked child has no part in it."""
    found = coordinator()
    if found is not None and process == os.getpid():
        found.close()
