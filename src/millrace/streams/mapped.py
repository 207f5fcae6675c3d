"""Blocks of a cell's log as memory-mapped files, for all worker processes of an executor.

Spark gives a cell's task to any process. One that has no copy of the cell's state, or is behind, would read
what it missed through Spark's state, a message a block; here it maps files that the process before it wrote,
so base tuples are in memory once, whoever works with them.

They are copies, and nothing depends on them: a file is named by the token of the attempt that wrote it, and
is read only where the head of the log says that this attempt counted. What is missing, damaged, or written by
an attempt that failed is read from the log. They lie among the executor's own temporary files, which Spark
removes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

_MAGIC = b"mlrs0001"
_ALIGNED = 64
_ENDING = ".blocks"


class Entry(NamedTuple):
    """A block as it was stored.

    Attributes:
        parts: What it is made of, as the log has it.
        data: Its tuples, as an Arrow record batch without a schema.
    """

    parts: str
    data: pa.Buffer


class MappedBlocks:
    """The files of one cell.

    Args:
        folder: For them alone; None where there is no place for them, and then nothing is ever found.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._fresh: list[tuple[tuple[int, ...], str, bytes]] = []
        self._open: dict[str, dict[tuple[int, ...], Entry]] = {}

    @classmethod
    def of_task(cls, cell: int) -> MappedBlocks:
        """Return the files of a cell of the query whose task runs here."""
        context, folders = TaskContext.get(), os.environ.get("SPARK_LOCAL_DIRS")
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if not query or not folders:
            return cls(None)
        return cls(Path(folders.split(",")[0]) / "millrace-streams" / query / str(cell))

    def add(self, key: tuple[int, ...], parts: str, data: bytes) -> None:
        """Take note of a block that was stored."""
        if self._folder is not None:
            self._fresh.append((key, parts, data))

    def seal(self, batch: int, token: str) -> None:
        """Write the blocks of an attempt at a micro-batch, before anything says that it counts."""
        fresh, self._fresh = self._fresh, []
        if self._folder is None or not fresh:
            return
        offset, entries = 0, list[tuple[tuple[int, ...], str, int, int, int]]()
        for key, parts, data in fresh:
            entries.append((key, parts, offset, len(data), zlib.crc32(data)))
            offset += -(-len(data) // _ALIGNED) * _ALIGNED
        header = json.dumps(entries, separators=(",", ":")).encode()
        start = -(-(len(_MAGIC) + 12 + len(header)) // _ALIGNED) * _ALIGNED
        path = self._folder / f"{batch}-{token}{_ENDING}"
        # A full disk costs time, and nothing else.
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                file.write(_MAGIC + len(header).to_bytes(8, "little"))
                file.write(zlib.crc32(header).to_bytes(4, "little") + header)
                for (_, _, data), (_, _, at, _, _) in zip(fresh, entries, strict=True):
                    file.seek(start + at)
                    file.write(data)
            part.rename(path)

    def find(self, key: tuple[int, ...], batch: int, token: str) -> Entry | None:
        """Return a block; None if it is not here.

        Args:
            key: Of the block.
            batch: Number of the micro-batch that stored it.
            token: Of the attempt at it that counts.
        """
        if self._folder is None:
            return None
        name = f"{batch}-{token}{_ENDING}"
        if name not in self._open:
            self._open[name] = _entries(self._folder / name)
        return self._open[name].get(tuple(key))

    def keep(self, batches: Collection[int], tokens: Mapping[int, str]) -> None:
        """Remove all files but those of some micro-batches, of attempts that counted.

        Args:
            batches: The micro-batches that blocks of the log are of.
            tokens: The attempts that counted, by micro-batch, of those whose files can still be found.
        """
        self._open.clear()
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                batch, _, token = path.stem.partition("-")
                counted = tokens.get(int(batch)) if batch.isdecimal() else None
                if counted != token or int(batch) not in batches:
                    path.unlink(missing_ok=True)


def _entries(path: Path) -> dict[tuple[int, ...], Entry]:
    """Return the blocks of a file; none if it is not there, or not whole."""
    try:
        mapped = pa.memory_map(str(path)).read_buffer()
    except OSError:
        return {}
    return _checked(mapped) or {}


def _checked(mapped: pa.Buffer) -> dict[tuple[int, ...], Entry] | None:
    fixed = len(_MAGIC) + 12
    head = mapped.slice(0, min(fixed, mapped.size)).to_pybytes()
    length = int.from_bytes(head[len(_MAGIC) : -4], "little")
    if head[: len(_MAGIC)] != _MAGIC or len(head) < fixed or fixed + length > mapped.size:
        return None
    header = mapped.slice(fixed, length).to_pybytes()
    if zlib.crc32(header) != int.from_bytes(head[-4:], "little"):
        return None
    start = -(-(fixed + length) // _ALIGNED) * _ALIGNED
    found: dict[tuple[int, ...], Entry] = {}
    rows: list[Any] = json.loads(header)
    for key, parts, offset, size, check in rows:
        if start + offset + size > mapped.size:
            return None
        data = mapped.slice(start + offset, size)
        if zlib.crc32(data) != check:
            return None
        found[tuple(key)] = Entry(parts, data)
    return found
