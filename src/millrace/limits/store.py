"""Rows of looked-up keys in SQLite: one schema for what a job finds out and for what outlives it.

Chunks of rows are kept whole as they came; an entry says in which chunk a key's rows are, and where. Entries
and chunks belong to a *definition* (a source, its columns, its types): a job's own store has one, a
user's cache (:mod:`millrace.limits.cache`) has any number.

A job's store is SQLite's temporary database: private to this process, removed from its folder as soon as it
is open (so nothing is left behind however the process ends), kept in memory only as far as the page
cache goes (:data:`_PAGES_KIB`). Nobody ever reads it again, so nothing is done for crashes: no journal,
no syncing, one transaction from its beginning to its end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat

from millrace.limits.chunk import LONGEST_TEXT, Chunk, Failure

_PAGES_KIB = 16_384
_MOST_TERMS = 4096
_LONGEST_BRIEF_TEXT = 200
_LONGEST_KIND = 100

FAILED = 0
"""The chunk of keys that could not be looked up; their first row is the failure's number."""

IN_CACHE = -1
"""The chunk of keys whose rows were in the user's cache when they were first wanted."""

Place = tuple[int, int, int, bytes]
"""Where a key's rows are: the chunk's number, its first row there, how many they are; and the key."""

Entry = tuple[bytes, int, int]
"""A key of a chunk, its first row there, and how many it has."""

TABLES = (
    "CREATE TABLE definition (id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE, name TEXT)",
    """CREATE TABLE chunk (
        id INTEGER PRIMARY KEY, definition INTEGER, asked REAL, expires REAL, size INTEGER, rows BLOB
    )""",
    """CREATE TABLE entry (
        definition INTEGER, key BLOB, chunk INTEGER, first INTEGER, size INTEGER,
        PRIMARY KEY (definition, key)
    ) WITHOUT ROWID""",
    "CREATE TABLE failure (id INTEGER PRIMARY KEY, kind TEXT, message TEXT, attempts INTEGER, binding TEXT)",
)
ENTRIES_BY_CHUNK = "CREATE INDEX entry_chunk ON entry (chunk)"
"""For stores whose chunks are copied or removed."""


class Store:
    """The answers and failures of one lookup in one job; for one thread at a time.

    Args:
        most_failed: Failures whose texts are kept in full; later ones only in brief.
        copied: Whether chunks will be copied into a cache.

    Every method may raise ``sqlite3.Error``: the disk is full, say.
    """

    def __init__(self, most_failed: int, *, copied: bool = False) -> None:
        self._most_failed = most_failed
        self._base = connect("")
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_PAGES_KIB}"):
            self._base.execute(f"PRAGMA {pragma}")
        for statement in (*TABLES, ENTRIES_BY_CHUNK) if copied else TABLES:
            self._base.execute(statement)
        self._base.execute("BEGIN")  # and never commit, for nobody will read it after a crash
        self._failures = 0

    def close(self) -> None:
        """Remove all."""
        self._base.close()

    def put(self, chunk: Chunk, asked: float) -> None:
        """Enter rows that came at a time, in seconds since 1970."""
        entries = zip(chunk.keys, accumulate(chunk.counts, initial=0), chunk.counts, strict=False)
        insert(self._base, 0, asked, None, len(chunk.keys), chunk.rows, entries)

    def fail(self, failures: Iterable[tuple[bytes, Failure]]) -> None:
        """Enter keys that could not be looked up."""
        for key, (kind, message, attempts, binding) in failures:
            self._failures += 1
            longest = LONGEST_TEXT if self._failures <= self._most_failed else _LONGEST_BRIEF_TEXT
            number = self._base.execute(
                "INSERT INTO failure VALUES (NULL, ?, ?, ?, ?)",
                (kind[:_LONGEST_KIND], message[:longest], attempts, binding[:longest]),
            ).lastrowid
            assert number is not None
            enter(self._base, 0, FAILED, [(key, number, 0)])

    def mark_cached(self, keys: Iterable[bytes]) -> None:
        """Note keys whose rows are in the user's cache."""
        enter(self._base, 0, IN_CACHE, ((key, 0, 0) for key in keys))

    def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Return the places of those keys that are known, in their order."""
        query = "SELECT chunk, first, size, key FROM entry WHERE definition = 0 AND key IN"
        return places(self._base, query, keys)

    def chunk(self, number: int) -> tuple[int, bytes] | None:
        """Return the number of a chunk's keys, and its rows; None if it has been removed."""
        return rows_of(self._base, number)

    def after(self, number: int) -> tuple[int, float, int, bytes, list[Entry]] | None:
        """Return the first chunk after the one with this number; None if there is none.

        That is its number, when it came, how many keys it has, its rows and its entries.
        """
        row = self._base.execute(
            "SELECT id, asked, size, rows FROM chunk WHERE id > ? ORDER BY id LIMIT 1", (number,)
        ).fetchone()
        if row is None:
            return None
        entries = self._base.execute("SELECT key, first, size FROM entry WHERE chunk = ?", (row[0],))
        return (*row, entries.fetchall())

    def failure(self, number: int) -> Failure:
        """Return what came of a key that could not be looked up."""
        found = self._base.execute(
            "SELECT kind, message, attempts, binding FROM failure WHERE id = ?", (number,)
        ).fetchone()
        return Failure(*found)

    def failures(self) -> list[Failure]:
        """Return the failures whose texts are kept in full, in the order in which they came."""
        rows = self._base.execute(
            "SELECT kind, message, attempts, binding FROM failure WHERE id <= ? ORDER BY id",
            (self._most_failed,),
        )
        return [Failure(*row) for row in rows]


def connect(path: str, timeout: float = 0.0) -> sqlite3.Connection:
    """Open a database without implicit transactions; one thread at a time may use it."""
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def insert(
    base: sqlite3.Connection,
    definition: int,
    asked: float,
    expires: float | None,
    size: int,
    rows: bytes,
    entries: Iterable[Entry],
) -> None:
    """Enter a chunk of rows with its keys."""
    number = base.execute(
        "INSERT INTO chunk VALUES (NULL, ?, ?, ?, ?, ?)", (definition, asked, expires, size, rows)
    ).lastrowid
    assert number is not None
    enter(base, definition, number, entries)


def enter(base: sqlite3.Connection, definition: int, chunk: int, entries: Iterable[Entry]) -> None:
    """Enter the keys of a chunk."""
    base.executemany(
        "INSERT OR REPLACE INTO entry (definition, chunk, key, first, size) VALUES (?, ?, ?, ?, ?)",
        ((definition, chunk, *entry) for entry in entries),
    )


def rows_of(base: sqlite3.Connection, chunk: int) -> tuple[int, bytes] | None:
    """Return the number of a chunk's keys, and its rows; None if it has been removed."""
    row = base.execute("SELECT size, rows FROM chunk WHERE id = ?", (chunk,)).fetchone()
    return None if row is None else (row[0], row[1])


def places(
    base: sqlite3.Connection, query: str, keys: Sequence[bytes], values: Sequence[object] = ()
) -> list[Place]:
    """Return the places that a query finds for any number of keys, sorted.

    The query ends with ``IN``; a list of keys is put behind it. The values are of its other parameters, which
    come before.
    """
    found: list[Place] = []
    for low in range(0, len(keys), _MOST_TERMS):
        some = keys[low : low + _MOST_TERMS]
        # Lists of few lengths, for SQLite to keep the prepared statements; a key named twice is found once.
        terms = 1 << (len(some) - 1).bit_length()
        padded = chain(values, some, repeat(some[0], terms - len(some)))
        found += base.execute(f"{query} ({','.join('?' * terms)})", tuple(padded)).fetchall()
    found.sort()
    return found
