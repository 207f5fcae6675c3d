"""What is known of one lookup's keys: who asks for which, and the answers and failures in SQLite.

Chunks of rows are kept whole as they came; an entry says in which chunk a key's rows are, and where. They are
in the user's file (:mod:`millrace.limits.cache`), if there is one. There they belong to a *definition* (a
source, its columns, its types), of which a file has any number. A chunk is in the file before anybody hears
of its rows. Failures outlive no job: another run shall ask again.

All else is in a temporary database: private to this process, removed from its folder as soon as it is open,
so that nothing is left behind however the process ends.

Nothing here is needed for a right answer. What cannot be known of a file before a job must not fail it. A
file that cannot be read is opened once more. If that does not help, its rows are asked again, those that this
job has asked too, and the lookup's progress names the problem. For one thread at a time.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain, groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from millrace.errors import InputError
from millrace.limits import codec
from millrace.limits.cache import (
    TABLES,
    connect,
    explained,
    file_of,
    make_folder,
    opened,
    problem_of,
    remove_chunks,
    transaction,
)
from millrace.limits.chunk import LONGEST_TEXT, Chunk, Failure
from millrace.limits.messages import Piece, Reply
from millrace.limits.progress import MOST_FAILED
from millrace.limits.registration import Registration

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
_LONGEST_BRIEF_TEXT = 200
_LONGEST_KIND = 100
_MOST_TERMS = 4096
_PRUNED_AT_ONCE = 64

_TEMPORARY = (
    "PRAGMA journal_mode = MEMORY",
    "PRAGMA cache_size = -16384",
    *TABLES,
    """CREATE TABLE failure (
        id INTEGER PRIMARY KEY, key BLOB UNIQUE, kind TEXT, message TEXT, attempts INTEGER, binding TEXT
    )""",
    "CREATE TABLE counted (key BLOB PRIMARY KEY, cached INTEGER) WITHOUT ROWID",
)
"""Nobody ever reads it again, so nothing is done for crashes; it takes some megabytes of memory."""


class Known(NamedTuple):
    """What :meth:`Answers.find` has found.

    Attributes:
        keys: Those that have rows or failed.
        cached: How many of them were found in the user's file for the first time.
        lost: How many others were known before, and are no more.
        lost_cached: How many of these were known by the file alone.
    """

    keys: set[bytes]
    cached: int
    lost: int
    lost_cached: int


class Rows:
    """Chunks of one lookup's rows in a database; every method may raise sqlite3.Error.

    Rows count until their time to live is over: that of whoever wrote them, and that of whoever reads. "Now"
    is when the job began, so within a job no key expires.
    """

    def __init__(self, base: sqlite3.Connection, registration: Registration, now: float) -> None:
        self.base = base
        self._definition_is = (registration.fingerprint, registration.name)
        self._ttl = registration.ttl
        self._now = now

    def put(self, chunk: Chunk, asked: float) -> None:
        """Enter rows that came at a time, in seconds since 1970: all, or none of them."""
        with transaction(self.base):
            self.base.execute(
                "INSERT OR IGNORE INTO definition (fingerprint, name) VALUES (?, ?)", self._definition_is
            )
            (definition,) = self.base.execute(
                "SELECT id FROM definition WHERE fingerprint = ?", self._definition_is[:1]
            ).fetchone()
            expires = None if self._ttl is None else asked + self._ttl
            number = self.base.execute(
                "INSERT INTO chunk VALUES (NULL, ?, ?, ?, ?, ?)",
                (definition, asked, expires, len(chunk.keys), chunk.rows),
            ).lastrowid
            firsts = accumulate(chunk.counts, initial=0)
            self.base.executemany(
                "INSERT OR REPLACE INTO entry (definition, chunk, key, first, size) VALUES (?, ?, ?, ?, ?)",
                zip(repeat(definition), repeat(number), chunk.keys, firsts, chunk.counts, strict=False),
            )

    def add_to(self, reply: Reply, keys: Sequence[bytes]) -> set[bytes]:
        """Add rows of keys to a reply until it is large enough; returns those that are known."""
        oldest = float("-inf") if self._ttl is None else self._now - self._ttl
        query = (
            "SELECT chunk, first, entry.size, key FROM entry JOIN chunk ON chunk.id = entry.chunk "
            "WHERE entry.definition = (SELECT id FROM definition WHERE fingerprint = ?) "
            "AND asked > ? AND (expires IS NULL OR expires > ?) AND key IN"
        )
        with transaction(self.base, "DEFERRED"):  # one state of a file, whatever other processes do
            values = (self._definition_is[0], oldest, self._now)
            places = sorted(select(self.base, query, keys, values))
            for number, group in groupby(places, key=itemgetter(0)):
                _, firsts, counts, some = map(list, zip(*group, strict=True))
                if reply.size >= codec.USUAL_ATTACHMENT:
                    reply.message.later += some
                    continue
                size, rows = self.base.execute(
                    "SELECT size, rows FROM chunk WHERE id = ?", (number,)
                ).fetchone()
                reply.add(Piece(some, firsts, counts, rows, size))
        return {key for *_, key in places}

    def prune(self) -> None:
        """Remove what has expired, and chunks of which newer ones have all keys; waits for nobody."""
        self.base.execute("PRAGMA busy_timeout = 0")
        query = (
            "SELECT id FROM chunk WHERE expires <= ? OR NOT EXISTS "
            "(SELECT 1 FROM entry WHERE entry.chunk = chunk.id) LIMIT ?"
        )
        while remove_chunks(self.base, query, (self._now, _PRUNED_AT_ONCE)) is not None:
            pass


class Answers:
    """Finds and keeps what is known: in the user's file, where the registration has one.

    ``time`` tells seconds since 1970; ``problem`` is told what is wrong with the file. Where it cannot be
    written any more, rows are kept in the temporary database; where it cannot be read, they are asked again.
    What the job has counted already is in the temporary database too: other processes add rows to the file,
    and remove some.
    """

    def __init__(
        self, registration: Registration, time: Callable[[], float], problem: Callable[[str], None]
    ) -> None:
        self._registration = registration
        self._time = time
        self._problem = problem
        self._path = registration.cache
        self._file: Rows | None = None
        self._writable = False
        self._failures = 0

    @cached_property
    def _own(self) -> Rows:
        """Made when it is first needed: many sessions share limits alone."""
        base = connect("")
        for each in _TEMPORARY:
            base.execute(each)
        return Rows(base, replace(self._registration, ttl=None), 0.0)

    def open_file(self) -> None:
        """Open the file of the registration; raises InputError if it cannot be used."""
        assert self._registration.cache is not None
        self._path = file_of(self._registration.cache)
        with explained(self._path):
            make_folder(self._path.parent)
            self._file = Rows(opened(self._path), self._registration, self._time())
        self._writable = True

    def find(self, keys: list[bytes], reply: Reply) -> Known:
        """Put what is known of some keys into a reply; may raise sqlite3.Error."""
        failed = self._failed(keys) if self._failures else []
        gone = set(failed)
        rest = [key for key in keys if key not in gone]
        found = self._add_from_file(reply, rest)
        counts = (0, 0, 0) if self._path is None else self._count(rest, found)
        if not self._writable:
            found |= self._own.add_to(reply, [key for key in rest if key not in found])
        self._add_failures(reply, failed)
        return Known(gone | found, *counts)

    def put(self, chunk: Chunk) -> None:
        """Keep the rows of some keys; may raise sqlite3.Error."""
        if self._file is not None and self._writable:
            try:
                self._file.put(chunk, self._time())
            except sqlite3.Error as error:
                self._writable = False
                self._name_problem(error)
            else:
                self._note_counted(chunk.keys, cached=False)
                return
        self._own.put(chunk, self._time())

    def fail(self, failures: Iterable[tuple[bytes, Failure]]) -> None:
        """Keep failures by key, with brief texts after ``MOST_FAILED``; may raise sqlite3.Error."""
        with transaction(self._own.base):
            for key, (kind, message, attempts, binding) in failures:
                self._failures += 1
                longest = LONGEST_TEXT if self._failures <= MOST_FAILED else _LONGEST_BRIEF_TEXT
                self._own.base.execute(
                    "INSERT INTO failure VALUES (NULL, ?, ?, ?, ?, ?)",
                    (key, kind[:_LONGEST_KIND], message[:longest], attempts, binding[:longest]),
                )

    def failures(self) -> list[Failure]:
        """Return the first ``MOST_FAILED`` failures."""
        rows = self._own.base.execute(
            "SELECT kind, message, attempts, binding FROM failure ORDER BY id LIMIT ?", (MOST_FAILED,)
        )
        return [Failure(*row) for row in rows]

    def close(self) -> None:
        """Tidy and close the file, and remove the rest."""
        if "_own" in self.__dict__:
            self._own.base.close()
        if self._file is not None:
            with suppress(sqlite3.Error):  # else another job does it
                self._file.prune()
            self._file.base.close()
            self._file = None

    def _failed(self, keys: Sequence[bytes]) -> list[bytes]:
        return [key for (key,) in select(self._own.base, "SELECT key FROM failure WHERE key IN", keys)]

    def _add_failures(self, reply: Reply, failed: list[bytes]) -> None:
        query = "SELECT key, kind, message, attempts, binding FROM failure WHERE key IN"
        told = select(self._own.base, query, failed[:_FAILURES_A_REPLY])
        reply.message.failed = {key: Failure(*texts) for key, *texts in told}
        reply.message.later += failed[_FAILURES_A_REPLY:]

    def _add_from_file(self, reply: Reply, keys: Sequence[bytes]) -> set[bytes]:
        """Add rows from the file. One that cannot be read is opened anew: what it has was paid for."""
        if self._file is None:
            return set()
        try:
            return self._file.add_to(reply, keys)
        except sqlite3.Error:
            reply.clear_rows()
            self._file.base.close()
        assert self._path is not None
        try:
            self._file.base = opened(self._path)
            return self._file.add_to(reply, keys)
        except (sqlite3.Error, OSError, InputError) as error:
            reply.clear_rows()
            self._file.base.close()
            self._file, self._writable = None, False
            self._name_problem(error)
            return set()

    def _count(self, keys: Sequence[bytes], found: set[bytes]) -> tuple[int, int, int]:
        """Return of keys, some of which are in the file, how many are new to the job, and how many are lost.

        The last number is that of the lost ones that were counted as cached.
        """
        base = self._own.base
        query = "SELECT key, cached FROM counted WHERE key IN"
        counted = {key: int(cached) for key, cached in select(base, query, keys)}
        new = found - counted.keys()
        self._note_counted(new, cached=True)
        lost = counted.keys() - found
        base.executemany("DELETE FROM counted WHERE key = ?", [(key,) for key in lost])
        return len(new), len(lost), sum(counted[key] for key in lost)

    def _note_counted(self, keys: Iterable[bytes], *, cached: bool) -> None:
        with transaction(self._own.base):
            self._own.base.executemany(
                "INSERT OR REPLACE INTO counted VALUES (?, ?)", zip(keys, repeat(cached), strict=False)
            )

    def _name_problem(self, error: Exception) -> None:
        assert self._path is not None
        self._problem(problem_of(self._path, error))


def select(
    base: sqlite3.Connection, query: str, keys: Sequence[bytes], values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """Return what a query finds for any number of keys.

    The query ends with ``IN``; a list of keys is put behind it. The values are of its other parameters, which
    come before.
    """
    found: list[tuple[Any, ...]] = []
    for low in range(0, len(keys), _MOST_TERMS):
        some = keys[low : low + _MOST_TERMS]
        # Lists of few lengths, for SQLite to keep the prepared statements; a key named twice is found once.
        terms = 1 << (len(some) - 1).bit_length()
        padded = chain(values, some, repeat(some[0], terms - len(some)))
        found += base.execute(f"{query} ({','.join('?' * terms)})", tuple(padded)).fetchall()
    return found
