"""The folder of one run's spill files: Arrow IPC files that are written once and read batch by batch.

Files are read through ordinary reads, not memory maps: mapped pages would count as memory of the
process for as long as a tuple of theirs is in use. A file is removed when no chunk points to it any
more, and the folder, with whatever is left, when the run ends in whatever way.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millrace.engine.spill.tally import Tally
from millrace.errors import ExecutionError, OptionError


def check_folder(path: str | None) -> None:
    """Raise unless files can be made in the folder; None is the system's folder of temporary files.

    Raises:
        OptionError: There is no such folder, or it cannot be written to.
    """
    where = path or tempfile.gettempdir()
    if not Path(where).is_dir():
        what = "is not a folder" if Path(where).exists() else "does not exist"
        raise OptionError(f"option spill_folder is {where!r}, which {what}: name a folder that exists")
    if not os.access(where, os.W_OK | os.X_OK):
        raise OptionError(
            f"option spill_folder is {where!r}, which this process may not write to: "
            "give it the right to, or name another folder"
        )


class SpillFile:
    """A finished or growing Arrow IPC file; removed when nothing refers to it any more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._reader: Any = None
        self._source: Any = None
        weakref.finalize(self, _remove, path).atexit = False

    def batch(self, number: int) -> pa.RecordBatch:
        """Return a record batch of the finished file, in memory of its own."""
        if self._reader is None:
            self._source = pa.OSFile(self.path, "rb")
            self._reader = pa.ipc.open_file(self._source)
        return self._reader.get_batch(number)

    def close(self) -> None:
        """Close the file for now; :meth:`batch` opens it again."""
        if self._source is not None:
            self._source.close()
            self._reader = self._source = None


@dataclass(frozen=True)
class Stored:
    """A record batch of a spill file: its number there, and the bytes it takes in the file."""

    file: SpillFile
    number: int
    size: int


class SpillWriter:
    """Appends record batches to one spill file.

    Args:
        folder: Where the file is.
        relation: The relation whose tuples are written.
        schema: Their columns.
    """

    def __init__(self, folder: SpillFolder, relation: int, schema: pa.Schema) -> None:
        self._folder = folder
        self._relation = relation
        self._batches = 0
        with folder.writing():
            self.file = SpillFile(folder.fresh(relation))
            self._sink = folder.open(self.file.path)
            self._writer = pa.ipc.new_file(self._sink, schema)

    def write(self, batch: pa.RecordBatch) -> Stored:
        """Append a batch; it can be read once the writer is closed."""
        began = time.perf_counter()
        before = self._sink.tell()
        with self._folder.writing():
            self._writer.write_batch(batch)
        size = self._sink.tell() - before
        self._batches += 1
        self._folder.tally.wrote(self._relation, batch.num_rows, size, time.perf_counter() - began)
        return Stored(self.file, self._batches - 1, size)

    def close(self) -> None:
        """Finish the file."""
        with self._folder.writing():
            self._writer.close()
            self._sink.close()

    def abandon(self) -> None:
        """Let go of the file without finishing it."""
        with suppress(OSError, pa.ArrowException):
            self._sink.close()


class SpillFolder:
    """A fresh folder for one run; use it in a ``with`` statement.

    Args:
        parent: Where to make it; None for the system's folder of temporary files.
        tally: Told of what is written and read.
        aliases: The block's relations, by number: parts of the files' names.
    """

    def __init__(self, parent: str | None, tally: Tally, aliases: tuple[str, ...]) -> None:
        self.tally = tally
        self._parent = parent
        self._aliases = aliases
        self._open: list[SpillWriter] = []
        self.path = ""

    def __enter__(self) -> Self:
        try:
            self.path = tempfile.mkdtemp(prefix="millrace-spill-", dir=self._parent)
        except OSError as error:
            where = self._parent or tempfile.gettempdir()
            raise OptionError(
                f"option spill_folder is {where!r}, where no folder can be made ({error.strerror}): "
                "name a folder that can be written to"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for writer in self._open:
            writer.abandon()
        self._open.clear()
        shutil.rmtree(self.path, ignore_errors=True)

    def fresh(self, relation: int) -> str:
        """Return a path for a new file of the relation."""
        self.tally.files += 1
        return str(Path(self.path) / f"{self.tally.files}-{relation}.arrow")

    def open(self, path: str) -> Any:
        """Open a new file for writing."""
        return pa.OSFile(path, "wb")

    def writer(self, relation: int, schema: pa.Schema) -> SpillWriter:
        """Begin a file."""
        writer = SpillWriter(self, relation, schema)
        self._open.append(writer)
        return writer

    def finish(self, writer: SpillWriter) -> None:
        """Finish a file, so that it can be read."""
        writer.close()
        self._open.remove(writer)

    def read(self, relation: int, stored: Stored) -> pa.RecordBatch:
        """Return a stored batch.

        Raises:
            ExecutionError: The file is gone or damaged.
        """
        began = time.perf_counter()
        try:
            batch = stored.file.batch(stored.number)
        except (OSError, pa.ArrowException) as error:
            raise ExecutionError(
                f"tuples of {self._aliases[relation]!r}, spilled to {stored.file.path}, cannot be read back: "
                f"{error}. Something else removed or changed the file; keep other programs out of "
                "the folder that spill_folder names"
            ) from error
        self.tally.read(relation, batch.num_rows, stored.size, time.perf_counter() - began)
        return batch

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Explain what goes wrong while writing."""
        try:
            yield
        except OSError as error:
            done = f"after {self.tally.bytes_written:,} bytes had been spilled there"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ExecutionError(
                    f"no space is left in {self.path} {done}: free some, let spill_folder name a folder on a "
                    "larger disk, or raise memory_budget, so that less is spilled"
                ) from error
            raise ExecutionError(f"spilling to {self.path} failed {done}: {error}") from error


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108  # also called while the interpreter is going down
