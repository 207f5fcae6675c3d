"""The user's cache: rows of looked-up keys that outlive the run, in a SQLite file.

Two processes may use one file at the same time (SQLite's write-ahead log): readers see whole chunks, a writer
waits for the other. Rows count for those lookups only whose definition has the same fingerprint, and
until their time to live is over: that of whoever wrote them, and that of whoever reads. "Now" is the
moment at which a job opened the cache, so within a job no key expires. Failures are not kept: another run
shall ask again.

Nothing here is needed for a right answer. What cannot be known before a job (:func:`check_cache`) must
not fail it: rows are asked again, and the lookup's progress names the problem.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, repeat
from pathlib import Path

import numpy as np

from millrace.coordination.chunk import split_keys
from millrace.coordination.registration import Registration
from millrace.coordination.store import Kept, Place, connect, places
from millrace.errors import InputError

SUFFIX = ".sqlite"

_APPLICATION = 0x4D524C31
_VERSION = 1
_PATIENCE = 30.0
_LEAST_FREE = 1 << 24
_BATCH = 1 << 22
_NAME_CHARACTERS = 40

_TABLES = (
    "CREATE TABLE definition (id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE, name TEXT)",
    """CREATE TABLE chunk (
        id INTEGER PRIMARY KEY, definition INTEGER, asked REAL, expires REAL, size INTEGER, rows BLOB
    )""",
    """CREATE TABLE entry (
        definition INTEGER, key BLOB, chunk INTEGER, first INTEGER, size INTEGER,
        PRIMARY KEY (definition, key)
    ) WITHOUT ROWID""",
    "CREATE INDEX entry_chunk ON entry (chunk)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)


def wall_time() -> float:
    """Return seconds since 1970, the time that all processes share."""
    return time.time()


class Cache:
    """One lookup's part of a cache file.

    Args:
        registration: The lookup; has a cache.
        now: Seconds since 1970.

    Raises:
        InputError: The file cannot be used; says why, and what to do.
    """

    def __init__(self, registration: Registration, now: float) -> None:
        assert registration.cache is not None
        self.path = file_of(registration.cache, registration.name, registration.fingerprint)
        self._ttl = registration.ttl
        self._now = now
        self._copied = 0
        self._copying = threading.Lock()
        with _explained(self.path):
            _make_folder(self.path.parent)
            self._reader = self._writer = _opened(self.path)
            self._writer.execute(
                "INSERT OR IGNORE INTO definition (fingerprint, name) VALUES (?, ?)",
                (registration.fingerprint, registration.name),
            )
            (self._definition,) = self._writer.execute(
                "SELECT id FROM definition WHERE fingerprint = ?", (registration.fingerprint,)
            ).fetchone()
            self._prune()
            self._reader = connect(str(self.path))

    def close(self) -> None:
        """Close the file."""
        with self._copying:
            self._reader.close()
            self._writer.close()

    def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Return the places of those keys whose rows have not expired, sorted; may raise sqlite3.Error."""
        oldest = float("-inf") if self._ttl is None else self._now - self._ttl
        query = (
            "SELECT chunk, first, entry.size, key FROM entry JOIN chunk ON chunk.id = entry.chunk "
            "WHERE entry.definition = ? AND asked > ? AND (expires IS NULL OR expires > ?) AND key IN"
        )
        return places(self._reader, query, keys, (self._definition, oldest, self._now))

    def chunk(self, number: int) -> tuple[int, bytes] | None:
        """Return the number of a chunk's keys, and its rows; None if another process removed it."""
        row = self._reader.execute("SELECT size, rows FROM chunk WHERE id = ?", (number,)).fetchone()
        return None if row is None else (row[0], row[1])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the file in the block, whatever other processes do; may raise sqlite3.Error."""
        self._reader.execute("BEGIN")
        try:
            yield
        finally:
            self._reader.execute("COMMIT")

    def copy(self, batch: Sequence[Kept]) -> None:
        """Add chunks, in any thread; passes over those added before. May raise sqlite3.Error."""
        with self._copying:
            batch = [kept for kept in batch if kept.number > self._copied]
            if not batch:
                return
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                for kept in batch:
                    self._add(kept)
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")
            self._copied = batch[-1].number

    def next_batch(self, after: Callable[[int], Kept | None], copied: int) -> list[Kept]:
        """Return the next chunks to copy, of some megabytes together.

        Args:
            after: Returns the chunk after a number.
            copied: Number of the last one that was copied.
        """
        batch: list[Kept] = []
        size = 0
        while size < _BATCH and (kept := after(copied)) is not None:
            batch.append(kept)
            copied = kept.number
            size += len(kept.rows) + len(kept.keys)
        return batch

    def _add(self, kept: Kept) -> None:
        expires = None if self._ttl is None else kept.asked + self._ttl
        chunk = self._writer.execute(
            "INSERT INTO chunk VALUES (NULL, ?, ?, ?, ?, ?)",
            (self._definition, kept.asked, expires, kept.size, kept.rows),
        ).lastrowid
        counts = np.frombuffer(kept.counts, np.int64).tolist()
        keys, firsts = split_keys(kept.keys), accumulate(counts, initial=0)
        self._writer.executemany(
            "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?)",
            zip(repeat(self._definition), keys, repeat(chunk), firsts, counts, strict=False),
        )

    def _prune(self) -> None:
        """Remove what has expired, and chunks of which newer ones have all keys."""
        self._writer.execute("BEGIN IMMEDIATE")
        self._writer.execute(
            "DELETE FROM entry WHERE chunk IN (SELECT id FROM chunk WHERE expires <= ?)", (self._now,)
        )
        self._writer.execute("DELETE FROM chunk WHERE id NOT IN (SELECT chunk FROM entry)")
        self._writer.execute("COMMIT")


def file_of(cache: Path, name: str, fingerprint: str) -> Path:
    """Return the file for a lookup in a cache: itself, or in a folder one for each definition."""
    if cache.suffix == SUFFIX:
        return cache
    plain = "".join(each if each.isalnum() or each in "-_" else "_" for each in name)
    return cache / f"{plain[:_NAME_CHARACTERS]}-{fingerprint[:32]}{SUFFIX}"


def check_cache(cache: Path, name: str = "", fingerprint: str = "") -> None:
    """Find out before a job whether a cache can be used; makes its folder.

    Args:
        cache: A folder, or a file that ends in ``.sqlite``.
        name: Of the lookup, for a folder.
        fingerprint: Of the lookup's definition; without one the files in a folder are not looked at.

    Raises:
        InputError: It cannot be made, read or written, or is damaged, or another program's; says what to do.
    """
    folder = cache.parent if cache.suffix == SUFFIX else cache
    if cache.suffix == SUFFIX and cache.is_dir():
        raise InputError(
            f"the cache {str(cache)!r} is a folder, but its name ends in {SUFFIX} as a file's would"
        )
    if cache.suffix != SUFFIX and cache.is_file():
        raise InputError(
            f"the cache {str(cache)!r} is a file: name a folder, or a file that ends in {SUFFIX}"
        )
    with _explained(cache):
        _make_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
        free = shutil.disk_usage(folder).free
        if free < _LEAST_FREE:
            raise OSError(f"only {free} bytes are free on its disk")
    if cache.suffix == SUFFIX or fingerprint:
        path = file_of(cache, name, fingerprint)
        with _explained(path):
            base = _opened(path)
            try:
                (first,) = base.execute("PRAGMA quick_check(1)").fetchone()
                if first != "ok":
                    raise sqlite3.DatabaseError(first)
                base.execute("BEGIN IMMEDIATE")
                base.execute(f"PRAGMA user_version = {_VERSION}")
                base.execute("COMMIT")
            finally:
                base.close()


def _opened(path: Path) -> sqlite3.Connection:
    """Open a cache file, making it if it is not there."""
    # SQLite gives the files beside it the permissions that this one has.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    base = connect(str(path), _PATIENCE)
    try:
        _check_own(base, path)
        _share(base)
        base.execute("BEGIN IMMEDIATE")
        if not _check_own(base, path):
            for statement in _TABLES:
                base.execute(statement)
        base.execute("COMMIT")
    except BaseException:
        base.close()
        raise
    return base


def _make_folder(folder: Path) -> None:
    """Make a folder for rows that nobody else is to read; one that is there stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _share(base: sqlite3.Connection) -> None:
    """Let several processes use a file at once."""
    mode = _patiently(lambda: base.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    if mode != "wal":
        raise sqlite3.OperationalError("its file system does not share memory between processes")
    base.execute("PRAGMA synchronous = NORMAL")


def _check_own(base: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has our tables; False for a new one, an error for another program's."""
    tables, application, version = (
        base.execute(each).fetchone()[0]
        for each in ("SELECT count(*) FROM sqlite_master", "PRAGMA application_id", "PRAGMA user_version")
    )
    if (application, version) == (_APPLICATION, _VERSION) and tables:
        return True
    if application == _APPLICATION:
        raise InputError(
            f"the cache {str(path)!r} was written by another version of Millrace (format {version}, "
            f"this one has {_VERSION}): name another file, or delete it"
        )
    if tables or application or version:
        raise InputError(
            f"the file {str(path)!r} is a database, but no cache of Millrace's: name another file"
        )
    return False


def _patiently(action: Callable[[], str]) -> str:
    """Repeat what SQLite refuses without waiting while another process holds the file."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise _unusable(path, error) from error


def problem_of(path: Path, error: Exception) -> str:
    """Return in a sentence why a cache cannot be used, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or type(error) is sqlite3.DatabaseError:
        what = "it is damaged, or no database: delete it (its rows are looked up again) or name another"
    elif code == sqlite3.SQLITE_FULL:
        what = "its disk is full: make room, or name a cache on another disk"
    elif code == sqlite3.SQLITE_BUSY:
        what = "another process has been writing to it all the time: name another cache"
    elif code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or isinstance(
        error, PermissionError
    ):
        what = "this process may not write there: change its permissions, or name another folder"
    else:
        what = "name a cache on a local disk with enough room where this process may write"
    return f"the cache {str(path)!r} cannot be used ({error}): {what}"


def _unusable(path: Path, error: Exception) -> InputError:
    return InputError(problem_of(path, error))
