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

import hmac
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.errors import InputError
from millrace.limits.registration import Registration
from millrace.limits.store import (
    ENTRIES_BY_CHUNK,
    TABLES,
    Place,
    Store,
    connect,
    insert,
    places,
    rows_of,
)

SUFFIX = ".sqlite"
KEY_FILE = ".millrace-key"
"""In a folder of caches: what the names of its files are made with; nobody else may read it."""

_APPLICATION = 0x4D524C31
_VERSION = 2
_PATIENCE = 30.0
_LEAST_FREE = 1 << 24
_BATCH = 1 << 22
_PRUNED_AT_ONCE = 64
_NAME_CHARACTERS = 40
_KEY_BYTES = 32

_whole: set[tuple[int, int]] = set()
"""Files that this process has read from end to end and found undamaged: device and number of each."""


def wall_time() -> float:
    """Return seconds since 1970, the time that all processes share."""
    return time.time()


class Cache:
    """One lookup's part of a cache file; for one thread at a time.

    The registration has a cache; ``now`` is in seconds since 1970.

    Raises:
        InputError: The file cannot be used; says why, and what to do.
    """

    def __init__(self, registration: Registration, now: float) -> None:
        assert registration.cache is not None
        self.path = registration.cache
        self._definition_is = (registration.fingerprint, registration.name)
        self._ttl = registration.ttl
        self._now = now
        self._copied = 0
        self._pruned = False
        with explained(self.path):
            self.path = file_of(registration.cache, registration.name, registration.fingerprint)
        with explained(self.path):
            _make_folder(self.path.parent)
            self._base = opened(self.path)
            self._definition = self._known_definition()

    def close(self) -> None:
        self._base.close()

    def find(self, keys: Sequence[bytes]) -> list[Place]:
        """Return the places of those keys whose rows have not expired, sorted; may raise sqlite3.Error."""
        if self._definition is None:
            self._definition = self._known_definition()
        if self._definition is None:
            return []
        oldest = float("-inf") if self._ttl is None else self._now - self._ttl
        query = (
            "SELECT chunk, first, entry.size, key FROM entry JOIN chunk ON chunk.id = entry.chunk "
            "WHERE entry.definition = ? AND asked > ? AND (expires IS NULL OR expires > ?) AND key IN"
        )
        return places(self._base, query, keys, (self._definition, oldest, self._now))

    def chunk(self, number: int) -> tuple[int, bytes] | None:
        """Return the number of a chunk's keys, and its rows; None if another process removed it."""
        return rows_of(self._base, number)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """See one state of the file in the block, whatever other processes do; may raise sqlite3.Error."""
        self._base.execute("BEGIN")
        try:
            yield
        finally:
            if self._base.in_transaction:  # an error may have ended it
                self._base.execute("COMMIT")

    def upkeep(self, store: Store) -> bool:
        """Copy some megabytes of what a store has more, or remove some of what has expired.

        Does nothing while another process writes. Returns whether there may be more to do; may raise
        sqlite3.Error.
        """
        try:
            with self._unwaiting():
                return self._copy(store) or self._prune()
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            return True

    def finish(self, store: Store) -> None:
        """Copy all that the store has more, waiting for other processes; may raise sqlite3.Error."""
        while self._copy(store):
            pass
        with self._unwaiting(), suppress(sqlite3.OperationalError):  # else another job removes it
            while self._prune():
                pass

    def _copy(self, store: Store) -> bool:
        """Copy the next chunks, of some megabytes together; returns whether there were any."""
        if store.after(self._copied) is None:
            return False
        copied, size = self._copied, 0
        with self._writing():
            definition = self._known_definition()
            if definition is None:
                self._base.execute(
                    "INSERT INTO definition (fingerprint, name) VALUES (?, ?)", self._definition_is
                )
                definition = self._known_definition()
            assert definition is not None
            while size < _BATCH and (found := store.after(copied)) is not None:
                copied, asked, count, rows, entries = found
                expires = None if self._ttl is None else asked + self._ttl
                insert(self._base, definition, asked, expires, count, rows, entries)
                size += len(rows) + sum(len(key) for key, *_ in entries)
        self._copied = copied
        return True

    def _known_definition(self) -> int | None:
        """Return the number of the definition in this file, if a job has copied rows of it."""
        found = self._base.execute(
            "SELECT id FROM definition WHERE fingerprint = ?", self._definition_is[:1]
        ).fetchone()
        return None if found is None else int(found[0])

    def _prune(self) -> bool:
        """Remove some of what has expired, and of chunks of which newer ones have all keys."""
        if self._pruned:
            return False
        found = self._base.execute(
            "SELECT id FROM chunk WHERE expires <= ? OR NOT EXISTS "
            "(SELECT 1 FROM entry WHERE entry.chunk = chunk.id) LIMIT ?",
            (self._now, _PRUNED_AT_ONCE),
        ).fetchall()
        if found:
            with self._writing():
                self._base.executemany("DELETE FROM entry WHERE chunk = ?", found)
                self._base.executemany("DELETE FROM chunk WHERE id = ?", found)
        self._pruned = len(found) < _PRUNED_AT_ONCE
        return not self._pruned

    @contextmanager
    def _unwaiting(self) -> Iterator[None]:
        """Have what another process is in the way of fail at once."""
        self._base.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            self._base.execute(f"PRAGMA busy_timeout = {int(1000 * _PATIENCE)}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write all that the block does, or nothing."""
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._base.in_transaction:
                self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")


def file_of(cache: Path, name: str, fingerprint: str) -> Path:
    """Return the file for a lookup in a cache: itself, or in a folder one for each definition.

    The name of the lookup is in the file's for people: a lookup that is called otherwise finds its rows.
    """
    if cache.suffix == SUFFIX:
        return cache
    plain = "".join(each if each.isalnum() or each in "-_" else "_" for each in name)
    code = hmac.digest(_key_of(cache), fingerprint.encode(), "sha256").hex()
    ending = f"-{code[:32]}{SUFFIX}"
    return next(iter(sorted(cache.glob(f"*{ending}"))), cache / f"{plain[:_NAME_CHARACTERS]}{ending}")


def _key_of(folder: Path) -> bytes:
    """Return what the names of a folder's files are made with, so that they tell nothing of secrets.

    Made once a folder; of several processes that make one at the same time, all get the same.
    """
    path = folder / KEY_FILE
    with suppress(FileNotFoundError):
        return path.read_bytes()
    _make_folder(folder)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=KEY_FILE) as file:  # 0600
        file.write(os.urandom(_KEY_BYTES))
        file.flush()
        with suppress(FileExistsError):
            path.hardlink_to(file.name)  # whole from the first moment on
    return path.read_bytes()


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
    with explained(cache):
        _make_folder(folder)
        tempfile.TemporaryFile(dir=folder).close()
        free = shutil.disk_usage(folder).free
        if free < _LEAST_FREE:
            raise OSError(f"only {free} bytes are free on its disk")
    if cache.suffix == SUFFIX or fingerprint:
        with explained(folder):
            path = file_of(cache, name, fingerprint)
        with explained(path):
            base = opened(path)
            try:
                _check_whole(base, path)
                base.execute("BEGIN IMMEDIATE")
                base.execute(f"PRAGMA user_version = {_VERSION}")
                base.execute("COMMIT")
            finally:
                base.close()


def _check_whole(base: sqlite3.Connection, path: Path) -> None:
    """Read a file from end to end, once a process: large ones take seconds."""
    found = path.stat()
    if (found.st_dev, found.st_ino) in _whole:
        return
    (first,) = base.execute("PRAGMA quick_check(1)").fetchone()
    if first != "ok":
        raise sqlite3.DatabaseError(first)
    _whole.add((found.st_dev, found.st_ino))


def opened(path: Path) -> sqlite3.Connection:
    """Open a cache file, making it if it is not there; may raise sqlite3.Error, OSError and InputError."""
    # SQLite gives the files beside it the permissions that this one has.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    base = connect(str(path), _PATIENCE)
    try:
        made = _check_own(base, path)
        _share(base)
        if not made:
            base.execute("BEGIN IMMEDIATE")
            if not _check_own(base, path):  # another process may have made it meanwhile
                for statement in (*TABLES, ENTRIES_BY_CHUNK):
                    base.execute(statement)
                base.execute(f"PRAGMA application_id = {_APPLICATION}")
                base.execute(f"PRAGMA user_version = {_VERSION}")
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
            if not _is_busy(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system raise into an :class:`InputError` that says what to do."""
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
