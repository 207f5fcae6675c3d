"""What users' caches hold, beside any job: definitions, their keys and rows, and how some are removed.

Keys are digests of the looked-up values, so they cannot be shown; a lookup's rows have the values as columns,
a predicate's have the truth alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from millrace.errors import InputError, OptionError, near
from millrace.limits.cache import SUFFIX, explained, opened, remove_chunks, wall_time
from millrace.limits.chunk import decoded

KEY = "key"
"""The column of :func:`rows` that has the digests, in hexadecimal digits."""


class Kept(NamedTuple):
    """One definition in one file.

    Attributes:
        file: Where.
        name: Of the lookup or the predicate.
        definition: The first digits of its fingerprint, which tell it from others of the same name.
        keys: That have an answer.
        size: Bytes of its rows.
        oldest: When its first answer came, in seconds since 1970; None without any.
        newest: When its latest did.
        expired: Keys whose time to live is over.
    """

    file: Path
    name: str
    definition: str
    keys: int
    size: int
    oldest: float | None
    newest: float | None
    expired: int


_LEAST_DIGITS = 8
"""Of a definition that is named by its first digits; fewer may be a word, and of several definitions."""

_LISTED = """
    SELECT name, substr(fingerprint, 1, 12),
        (SELECT count(*) FROM entry WHERE entry.definition = definition.id),
        coalesce(sum(length(rows)), 0), min(asked), max(asked),
        (SELECT count(*) FROM entry JOIN chunk ON chunk.id = entry.chunk
            WHERE entry.definition = definition.id AND expires <= ?)
    FROM definition LEFT JOIN chunk ON chunk.definition = definition.id
    GROUP BY definition.id ORDER BY name, fingerprint
"""

_ENTRIES = """
    SELECT key, first, entry.size, chunk.id, rows FROM definition
    JOIN entry ON entry.definition = definition.id JOIN chunk ON chunk.id = entry.chunk
    WHERE name = ? AND substr(fingerprint, 1, 12) = ? ORDER BY chunk.id DESC, first LIMIT ?
"""

_OLD = """
    SELECT id FROM chunk WHERE (expires <= ? OR asked < ?) AND definition IN
        (SELECT id FROM definition WHERE name = ? AND substr(fingerprint, 1, 12) = ?)
    LIMIT 64
"""


def files_of(cache: Path) -> list[Path]:
    """Return the files of a cache: itself, or those in the folder.

    Raises:
        InputError: There is no such file or folder, or it has none.
    """
    if cache.is_dir() and cache.suffix != SUFFIX:
        found = sorted(cache.glob(f"*{SUFFIX}"))
        if not found:
            raise InputError(f"the folder {str(cache)!r} has no answers: expected files that end in {SUFFIX}")
        return found
    if not cache.is_file():
        raise InputError(
            f"there is no cache {str(cache)!r}: expected a folder, or a file that ends in {SUFFIX}"
        )
    return [cache]


def listed(cache: Path, now: float | None = None) -> list[Kept]:
    """Return what a cache holds.

    Raises:
        InputError: A file cannot be read, or is no cache.
    """
    found = []
    for file in files_of(cache):
        if not file.stat().st_size:
            continue  # nobody has made it a cache
        with _open(file) as base:
            query = base.execute(_LISTED, (wall_time() if now is None else now,))
            found += [Kept(file, *row) for row in query]
    return found


def of_name(found: list[Kept], name: str | None) -> list[Kept]:
    """Return the definitions of a name, or else the one that has such first digits; all of them for None.

    Raises:
        OptionError: There is none.
    """
    if name is None:
        return found
    chosen = [each for each in found if each.name == name]
    if not chosen and len(name) >= _LEAST_DIGITS:
        chosen = [each for each in found if each.definition.startswith(name.lower())]
    if not chosen:
        raise OptionError(
            f"no answers of {name!r}: {near(name, [each.name for each in found])} Expected a whole name, or "
            f"at least {_LEAST_DIGITS} digits of a definition"
        )
    return chosen


def rows(of: Kept, limit: int) -> pa.Table:
    """Return what is kept under a definition, the latest first, with a column :data:`KEY` before.

    The limit is of keys; a key may have any number of rows.

    Raises:
        InputError: The file cannot be read, or is no cache.
    """
    parts = []
    with _open(of.file) as base:
        for key, first, size, _, encoded in base.execute(_ENTRIES, (of.name, of.definition, limit)):
            part = decoded(encoded).slice(first, size)
            keys = pa.array([key.hex()] * size, pa.string())
            column = KEY if KEY not in part.column_names else f"{KEY} (digest)"
            parts.append(part.add_column(0, column, keys))
    return (
        pa.concat_tables(parts, promote_options="default")
        if parts
        else pa.table({KEY: pa.array([], pa.string())})
    )


def pruned(chosen: Sequence[Kept], before: float | None, now: float | None = None) -> int:
    """Remove answers, in steps between which jobs that use the cache go on; returns how many keys had them.

    They are those that came earlier than ``before``, for None those alone that have expired. Times are in
    seconds since 1970.

    Raises:
        InputError: A file cannot be read or written, or is no cache.
    """
    count = 0
    times = wall_time() if now is None else now, float("-inf") if before is None else before
    for file in dict.fromkeys(each.file for each in chosen):
        with _open(file) as base:
            for each in (each for each in chosen if each.file == file):
                limits = (*times, each.name, each.definition)
                while (removed := remove_chunks(base, _OLD, limits)) is not None:
                    count += removed
            base.execute("PRAGMA busy_timeout = 0")
            with suppress(sqlite3.OperationalError):  # a job uses it: the room is used by its next answers
                # It copies the whole file, for which a job must not wait: in this mode nobody else has it.
                if base.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete":
                    base.execute("VACUUM")
    return count


@contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    with explained(file), closing(opened(file)) as base:
        yield base
