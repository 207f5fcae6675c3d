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
import os
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext

_SCHEMA = pa.schema([("name", pa.string()), ("parts", pa.string()), ("data", pa.large_binary())])
_CHECK = 4
"""Bytes of the checksum, which is the end of a file."""
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
        self._fresh: list[tuple[str, str, bytes]] = []
        self._open: dict[str, dict[str, Entry]] = {}

    @classmethod
    def of_task(cls, cell: int) -> MappedBlocks:
        """Return the files of a cell of the query whose task runs here."""
        context, folders = TaskContext.get(), os.environ.get("SPARK_LOCAL_DIRS")
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if not query or not folders:
            return cls(None)
        return cls(Path(folders.split(",")[0]) / "millrace-streams" / query / str(cell))

    def add(self, name: str, parts: str, data: bytes) -> None:
        """Take note of a block that was stored under a name."""
        if self._folder is not None:
            self._fresh.append((name, parts, data))

    def seal(self, batch: int, token: str) -> None:
        """Write the blocks of an attempt at a micro-batch, before anything says that it counts."""
        fresh, self._fresh = self._fresh, []
        if self._folder is None or not fresh:
            return
        columns = [list(column) for column in zip(*fresh, strict=True)]
        whole = pa.record_batch(columns, schema=_SCHEMA).serialize()
        path = self._folder / f"{batch}-{token}{_ENDING}"
        # A full disk costs time, and nothing else.
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                file.write(whole)
                file.write(zlib.crc32(whole).to_bytes(_CHECK, "little"))
            part.rename(path)

    def find(self, name: str, batch: int, token: str) -> Entry | None:
        """Return a block; None if it is not here.

        ``batch`` is the micro-batch that stored it, ``token`` is of the attempt at it that counts.
        """
        if self._folder is None:
            return None
        file = f"{batch}-{token}{_ENDING}"
        if file not in self._open:
            self._open[file] = _entries(self._folder / file)
        return self._open[file].get(name)

    def keep(self, batches: Collection[int], tokens: Mapping[int, str]) -> None:
        """Remove all files but those of some micro-batches, of attempts that counted.

        Blocks of the log are of these ``batches``. ``tokens`` name, by micro-batch, the attempts that counted
        and whose files can still be found.
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


def _entries(path: Path) -> dict[str, Entry]:
    """Return the blocks of a file by their names; none if it is not there, or not whole."""
    try:
        mapped = pa.memory_map(str(path)).read_buffer()
    except OSError:
        return {}
    size = mapped.size - _CHECK
    if size <= 0 or zlib.crc32(mapped.slice(0, size)) != int.from_bytes(mapped.slice(size), "little"):
        return {}
    rows = pa.ipc.read_record_batch(mapped.slice(0, size), _SCHEMA)
    entries = zip(*rows.columns, strict=True)
    return {name.as_py(): Entry(parts.as_py(), data.as_buffer()) for name, parts, data in entries}
