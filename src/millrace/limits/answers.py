"""What is known of one lookup's keys: who asks for which, answers and failures, rows in the user's cache.

For one thread. A cache that cannot be used, or no longer, is gone without: its problem is named once.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

from millrace.limits import codec
from millrace.limits.cache import Cache, problem_of
from millrace.limits.chunk import Chunk, Failure
from millrace.limits.messages import Piece, Reply
from millrace.limits.progress import MOST_FAILED
from millrace.limits.registration import Registration
from millrace.limits.store import FAILED, IN_CACHE, Place, Store

Keys = dict[int, list[bytes]]
"""Keys by the owner whom they concern."""


class Claims:
    """The keys of one table that are being asked."""

    def __init__(self) -> None:
        self._owners: dict[bytes, int] = {}
        self._waiters: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, key: bytes) -> int | None:
        """Return who is asking a key; None if nobody is."""
        return self._owners.get(key)

    def of(self, owner: int) -> list[bytes]:
        """Return the keys that an owner is asking."""
        return [key for key, other in self._owners.items() if other == owner]

    def ask(self, owner: int, keys: Iterable[bytes]) -> None:
        """Make keys that nobody is asking those of an owner."""
        self._owners.update(dict.fromkeys(keys, owner))

    def wait(self, owner: int, key: bytes) -> None:
        """Let an owner wait for a key that another is asking."""
        waiters = self._waiters.setdefault(key, [])
        if owner not in waiters:
            waiters.append(owner)

    def own(self, owner: int, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of the keys that the owner is asking; others have gone to somebody else."""
        owners = self._owners
        return [key for key in keys if owners.get(key) == owner]

    def settle(self, keys: Iterable[bytes]) -> Keys:
        """Take keys that have an answer out, and return who waits for them."""
        told: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in keys:
            del self._owners[key]
            for waiter in self._waiters.pop(key, ()) if self._waiters else ():
                told[waiter].append(key)
        return told

    def give_up(self, owner: int, keys: Iterable[bytes]) -> Keys:
        """Hand keys that this owner is asking to those that wait longest; return what is whose now."""
        heirs: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in self.own(owner, keys):
            waiters = self._waiters.get(key)
            if not waiters:
                del self._owners[key]
                continue
            heir = self._owners[key] = waiters.pop(0)
            if not waiters:
                del self._waiters[key]
            heirs[heir].append(key)
        return heirs

    def drop(self, owner: int) -> Keys:
        """Forget an owner that is gone; returns as :meth:`give_up` does."""
        for key, waiters in list(self._waiters.items()):
            if owner in waiters:
                waiters.remove(owner)
                if not waiters:
                    del self._waiters[key]
        return self.give_up(owner, self.of(owner))


_FAILURES_A_REPLY = 256


class _Chunks(Protocol):
    def chunk(self, number: int) -> tuple[int, bytes] | None: ...


class Known(NamedTuple):
    """What :meth:`Answers.find` has found.

    Attributes:
        keys: Those that have rows or failed.
        cached: How many of them are known by the cache for the first time.
        lost: How many others the cache knew before, and knows no more.
    """

    keys: set[bytes]
    cached: int
    lost: int


class Answers:
    """Finds, keeps and writes what is known.

    ``time`` tells seconds since 1970; ``problem`` is told what is wrong with the cache.
    """

    def __init__(
        self, registration: Registration, time: Callable[[], float], problem: Callable[[str], None]
    ) -> None:
        self._registration = registration
        self._time = time
        self._problem = problem
        self._readable = self._writable = False
        self._cache: Cache | None = None

    @cached_property
    def _store(self) -> Store:
        """Made when it is first needed: many sessions share limits alone."""
        return Store(MOST_FAILED, copied=self._registration.cache is not None)

    def open_cache(self) -> None:
        """Open the cache of the registration; raises InputError if it cannot be used."""
        self._cache = Cache(self._registration, self._time())
        self._readable = self._writable = True

    def find(self, keys: list[bytes], reply: Reply) -> Known:
        """Put what is known of some keys into a reply; may raise sqlite3.Error."""
        places = self._store.find(keys)
        cached = lost = 0
        if self._cache is not None:
            places, cached, lost = self._with_cache(self._cache, keys, places, reply)
        failed = [(number, key) for chunk, number, _, key in places if chunk == FAILED]
        message = reply.message
        message.failed = {key: self._store.failure(number) for number, key in failed[:_FAILURES_A_REPLY]}
        message.later += [key for _, key in failed[_FAILURES_A_REPLY:]]
        _add_rows([place for place in places if place[0] > 0], self._store, reply)
        return Known({key for *_, key in places}, cached, lost)

    def put(self, chunk: Chunk) -> None:
        """Keep the rows of some keys; may raise sqlite3.Error."""
        self._store.put(chunk, self._time())

    def fail(self, failures: Iterable[tuple[bytes, Failure]]) -> None:
        """Keep failures by key; may raise sqlite3.Error."""
        self._store.fail(failures)

    def failures(self) -> list[Failure]:
        """Return the first ``MOST_FAILED`` failures."""
        return list(self._store.failures())

    def flush(self) -> None:
        """Write to the cache what is not there yet."""
        if self._cache is not None and self._writable:
            try:
                self._cache.finish(self._store)
            except sqlite3.Error as error:
                self._stop_writing(self._cache, error)

    def upkeep(self) -> bool:
        """Copy into the cache, and remove what has expired, a step of each; returns whether to go on."""
        if self._cache is None or not self._writable:
            return False
        try:
            return self._cache.upkeep(self._store)
        except sqlite3.Error as error:
            self._stop_writing(self._cache, error)
            return False

    def close(self) -> None:
        """Close the cache, and remove the rest."""
        if "_store" in self.__dict__:
            self._store.close()
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    def _with_cache(
        self, cache: Cache, keys: list[bytes], places: list[Place], reply: Reply
    ) -> tuple[list[Place], int, int]:
        """Add rows from the cache to a reply; ``places`` are those of the keys that the store knows.

        Returns the places of all keys that are known, how many are new here, and how many are lost.
        """
        ours = {key for *_, key in places}
        before = {key for chunk, *_, key in places if chunk == IN_CACHE}
        found: set[bytes] = set()
        if self._readable:
            try:
                with cache.reading():
                    in_cache = cache.find([key for key in keys if key in before or key not in ours])
                    found = {key for *_, key in in_cache} - _add_rows(in_cache, cache, reply)
            except sqlite3.Error as error:
                self._readable = False
                self._problem(problem_of(cache.path, error))
                reply.clear_rows()
                found = set()
        self._store.mark_cached(found - before)
        kept = [place for place in places if place[0] != IN_CACHE]
        places = kept + [(IN_CACHE, 0, 0, key) for key in found]
        return places, len(found - before), len(before - found)

    def _stop_writing(self, cache: Cache, error: sqlite3.Error) -> None:
        self._writable = False
        self._problem(problem_of(cache.path, error))


def _add_rows(places: list[Place], chunks: _Chunks, reply: Reply) -> set[bytes]:
    """Add rows to a reply until it is large enough; returns the keys whose chunk is not there."""
    missing: set[bytes] = set()
    for number, group in groupby(places, key=itemgetter(0)):
        _, firsts, counts, keys = map(list, zip(*group, strict=True))
        if reply.size >= codec.USUAL_ATTACHMENT:
            reply.message.later += keys
            continue
        kept = chunks.chunk(number)
        if kept is None:
            missing.update(keys)
            continue
        size, rows = kept
        reply.add(Piece(keys, firsts, counts, rows, size))
    return missing
