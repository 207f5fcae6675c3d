"""What one job's tasks found out about the keys of one lookup, on disk.

It is SQLite's temporary database: private to this process, removed from its folder as soon as it is
open (so nothing is left behind however the process ends), kept in memory only as far as the page cache goes
(:data:`_PAGES_KIB`). Nobody ever reads it again, so nothing is done for crashes: no journal, no
syncing. Chunks of rows are kept whole as they came; a key knows its chunk and its place there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, repeat
from typing import NamedTuple

from millrace.coordination.chunk import Chunk, Failure

_PAGES_KIB = 16_384
_MOST_TERMS = 4096
_LONGEST_TEXT = 4_000
_LONGEST_BRIEF_TEXT = 200
_LONGEST_KIND = 100

FAILED = 0
"""The chunk of keys that could not be looked up; their first row is the failure's number."""

IN_CACHE = -1
"""The chunk of keys whose rows were in the user's cache when they were first wanted."""

Place = tuple[int, int, int, bytes]
"""Where a key's rows are: the chunk's number, its first row there, how many they are; and the key."""

_TABLES = """
CREATE TABLE chunk (id INTEGER PRIMARY KEY, size INTEGER, asked REAL, keys BLOB, counts BLOB, rows BLOB);
CREATE TABLE entry (key BLOB PRIMARY KEY, chunk INTEGER, first INTEGER, size INTEGER) WITHOUT ROWID;
CREATE TABLE failure (id INTEGER PRIMARY KEY, kind TEXT, message TEXT, attempts INTEGER, binding TEXT);
"""


class Kept(NamedTuple):
    """A chunk as it is kept.

    Attributes:
        number: Its number; later ones are larger.
        size: How many keys it has.
        asked: When it came, in seconds since 1970.
        keys: The keys, one after the other; empty unless the store was told to keep them.
        counts: Their rows as ``int64``, likewise.
        rows: The rows, as an Arrow IPC stream.
    """

    number: int
    size: int
    asked: float
    keys: bytes
    counts: bytes
    rows: bytes


class Store:
    """The answers and failures of one lookup in one job.

    Args:
        most_failed: Failures whose texts are kept in full; later ones only in brief.

    Every method may raise ``sqlite3.Error``: the disk is full, say.
    """

    def __init__(self, most_failed: int) -> None:
        self._most_failed = most_failed
        self._base = connect("")
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_PAGES_KIB}"):
            self._base.execute(f"PRAGMA {pragma}")
        self._base.executescript(_TABLES)
        self._base.execute("BEGIN")  # and never commit, for nobody will read it after a crash
        self._failures = 0

    def close(self) -> None:
        """Remove all."""
        self._base.close()

    def put(self, chunk: Chunk, asked: float, packed: tuple[bytes, bytes]) -> None:
        """Enter rows.

        Args:
            chunk: The rows.
            asked: When they came.
            packed: The chunk's keys and counts as they are to be kept (see :class:`Kept`).
        """
        number = self._base.execute(
            "INSERT INTO chunk VALUES (NULL, ?, ?, ?, ?, ?)", (len(chunk.keys), asked, *packed, chunk.rows)
        ).lastrowid
        firsts = accumulate(chunk.counts, initial=0)
        self._enter(zip(chunk.keys, repeat(number), firsts, chunk.counts, strict=False))

    def fail(self, failures: Iterable[tuple[bytes, Failure]]) -> None:
        """Enter keys that could not be looked up."""
        for key, (kind, message, attempts, binding) in failures:
            self._failures += 1
            longest = _LONGEST_TEXT if self._failures <= self._most_failed else _LONGEST_BRIEF_TEXT
            number = self._base.execute(
                "INSERT INTO failure VALUES (NULL, ?, ?, ?, ?)",
                (kind[:_LONGEST_KIND], message[:longest], attempts, binding[:longest]),
            ).lastrowid
            self._enter([(key, FAILED, number, 0)])

    def mark_cached(self, keys: Iterable[bytes]) -> None:
        """Note keys whose rows are in the user's cache."""
        self._enter((key, IN_CACHE, 0, 0) for key in keys)

    def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Return the places of those keys that are known, in their order."""
        return places(self._base, "SELECT chunk, first, size, key FROM entry WHERE key IN", keys)

    def chunk(self, number: int) -> tuple[int, bytes]:
        """Return the number of a chunk's keys, and its rows."""
        size, rows = self._base.execute("SELECT size, rows FROM chunk WHERE id = ?", (number,)).fetchone()
        return size, rows

    def after(self, number: int) -> Kept | None:
        """Return the first chunk after the one with this number; None if there is none."""
        row = self._base.execute("SELECT * FROM chunk WHERE id > ? ORDER BY id LIMIT 1", (number,)).fetchone()
        return None if row is None else Kept(*row)

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

    def _enter(self, rows: Iterable[tuple[bytes, int | None, int | None, int]]) -> None:
        self._base.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", rows)


def connect(path: str, timeout: float = 0.0) -> sqlite3.Connection:
    """Open a database without implicit transactions; one thread at a time may use it."""
    return sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)


def places(
    base: sqlite3.Connection, query: str, keys: Sequence[bytes], values: Sequence[object] = ()
) -> list[Place]:
    """Return the places that a query finds for any number of keys, sorted.

    Args:
        base: The database.
        query: Ends with ``IN``; a list of keys is put behind it.
        keys: The keys.
        values: Of the query's other parameters, which come before.
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
