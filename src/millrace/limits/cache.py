"""The user's cache: SQLite files in which answers outlive the run, and what streams have spent.

Several processes may use one file at the same time (SQLite's write-ahead log): readers see whole chunks, a
writer waits for the others. Rows count for those lookups only whose definition has the same fingerprint.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from millrace.errors import InputError

SUFFIX = ".sqlite"

TABLES = (
    "CREATE TABLE definition (id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE, name TEXT)",
    """CREATE TABLE chunk (
        id INTEGER PRIMARY KEY, definition INTEGER, asked REAL, expires REAL, size INTEGER, rows BLOB
    )""",
    """CREATE TABLE entry (
        definition INTEGER, key BLOB, chunk INTEGER, first INTEGER, size INTEGER,
        PRIMARY KEY (definition, key)
    ) WITHOUT ROWID""",
)
"""Of answers, wherever they are kept."""

_FILE_TABLES = (
    *TABLES,
    "CREATE INDEX entry_chunk ON entry (chunk)",  # by which chunks are removed
    """CREATE TABLE spent (
        name TEXT, writer TEXT, requests INTEGER, cost REAL, highest REAL, PRIMARY KEY (name, writer)
    ) WITHOUT ROWID""",
)

_APPLICATION = 0x4D524C31
_VERSION = 3
_PATIENCE = 30.0
"""Seconds for which a writer waits for others."""

_LEAST_FREE = 1 << 24

_whole: set[tuple[int, int]] = set()
"""Files that this process has read from end to end and found undamaged: device and number of each."""


def wall_time() -> float:
    """Return seconds since 1970, the time that all processes share."""
    return time.time()


def connect(path: str, patience: float = 0.0) -> sqlite3.Connection:
    """Open a database without implicit transactions; one thread at a time may use it."""
    return sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)


@contextmanager
def transaction(base: sqlite3.Connection, how: str = "IMMEDIATE") -> Iterator[None]:
    """Write all that the block does, or nothing; ``DEFERRED`` is for blocks that read one state alone."""
    base.execute(f"BEGIN {how}")
    try:
        yield
        base.execute("COMMIT")
    except BaseException:
        if base.in_transaction:  # an error may have ended it
            base.execute("ROLLBACK")
        raise


def remove_chunks(base: sqlite3.Connection, query: str, values: Sequence[Any]) -> int | None:
    """Remove the chunks whose ids a query finds, with their entries; None where it finds none.

    Returns how many entries they had. Ids are given again, so nobody else may write in between.
    """
    with transaction(base):
        numbers = base.execute(query, values).fetchall()
        removed = base.executemany("DELETE FROM entry WHERE chunk = ?", numbers).rowcount
        base.executemany("DELETE FROM chunk WHERE id = ?", numbers)
    return removed if numbers else None


def file_of(cache: Path) -> Path:
    """Return the file of a cache: itself, or the one that is made in a folder."""
    return cache if cache.suffix == SUFFIX else cache / f"answers{SUFFIX}"


def check_cache(cache: Path) -> None:
    """Find out before a job whether a cache, a folder or a file, can be used; makes what is not there.

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
    with explained(cache):
        make_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
        free = shutil.disk_usage(folder).free
        if free < _LEAST_FREE:
            raise OSError(f"only {free} bytes are free on its disk")
    path = file_of(cache)
    with explained(path), closing(opened(path)) as base:
        _check_whole(base, path)
        with transaction(base):
            base.execute(f"PRAGMA user_version = {_VERSION}")


def _check_whole(base: sqlite3.Connection, path: Path) -> None:
    """Read a file from end to end, once a process: large ones take seconds."""
    found = path.stat()
    if (found.st_dev, found.st_ino) in _whole:
        return
    (first,) = base.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise sqlite3.DatabaseError(first)
    _whole.add((found.st_dev, found.st_ino))


def opened(path: Path, patience: float = _PATIENCE) -> sqlite3.Connection:
    """Open a cache file, making it if it is not there; may raise sqlite3.Error, OSError and InputError.

    ``patience`` is in seconds, for which it waits for other processes.
    """
    # SQLite gives the files beside it the permissions that this one has. One that is there is not opened: to
    # close it again would end the locks that this process has on it.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    base = connect(str(path), patience)
    try:
        made = _check_own(base, path)
        _share(base, patience)
        if not made:
            with transaction(base):
                if not _check_own(base, path):  # another process may have made it meanwhile
                    for statement in _FILE_TABLES:
                        base.execute(statement)
                    base.execute(f"PRAGMA application_id = {_APPLICATION}")
                    base.execute(f"PRAGMA user_version = {_VERSION}")
    except BaseException:
        base.close()
        raise
    return base


def make_folder(folder: Path) -> None:
    """Make a folder for rows that nobody else is to read; one that is there stays as it is."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def _share(base: sqlite3.Connection, patience: float) -> None:
    """Let several processes use a file at once."""
    mode = _patiently(lambda: base.execute("PRAGMA journal_mode = WAL").fetchone()[0], patience)
    if mode != "wal":
        raise sqlite3.OperationalError("its file system does not share memory between processes")
    base.execute("PRAGMA synchronous = NORMAL")


def _check_own(base: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has our tables; False for a new one, an error for another program's."""
    # One statement sees one state: between two, another process may make the tables.
    tables, application, version = base.execute(
        "SELECT (SELECT count(*) FROM sqlite_master), application_id, user_version "
        "FROM pragma_application_id, pragma_user_version"
    ).fetchone()
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


def _patiently(action: Callable[[], str], patience: float) -> str:
    """Repeat what SQLite refuses without waiting while another process holds the file."""
    end = time.monotonic() + patience
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise into an :class:`InputError` that says what to do."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise InputError(problem_of(path, error)) from error


def problem_of(path: Path, error: Exception) -> str:
    """Return in a sentence why a cache cannot be used, and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or type(error) is sqlite3.DatabaseError:
        what = (
            "it is damaged, or no database: name another, or delete it if it is a cache (its rows are looked "
            "up again, and budgets of streams begin anew)"
        )
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
