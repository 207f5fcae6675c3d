"""The folder of one run's spill files, which are written once and read batch by batch.

Files are read through ordinary reads, not memory maps: mapped pages would count as memory of the
process for as long as a tuple of theirs is in use. A file is removed when no chunk points to it any
more, and the folder, with whatever is left, when the run ends in whatever way: a failure holds on to the run
for as long as it is looked at, but not to its files. What goes there and comes back is booked.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from millrace.engine.figures import CellFigures, ModuleFigures
from millrace.engine.peak import peak_memory
from millrace.errors import ExecutionError, OptionError


class Tally:
    """What one run did: written, read and joined, and the figures of all its eddies together.

    Attributes:
        files: Spill files made (for ``sort_merge`` each sorted run is one).
        in_memory: Joins of tuples that had stayed in memory, but for a streamed relation's.
        from_disk: Joins of tuples read back.
        splits_by_key: Partitions that were still too large and divided by another hash of a key.
        splits_by_rows: Partitions that no key divides, joined a part of one relation at a time.
    """

    def __init__(self, aliases: Sequence[str]) -> None:
        self.aliases = aliases
        self.files = self.splits_by_key = self.splits_by_rows = 0
        self.in_memory = ModuleFigures("Partitions in memory", "partition", 0, 0, 0, 0.0)
        self.from_disk = ModuleFigures("Partitions from disk", "partition", 0, 0, 0, 0.0)
        self._flows: dict[str, dict[int, ModuleFigures]] = {"scan": {}, "write": {}, "read": {}}
        self._eddies = CellFigures(0, 0.0)

    @property
    def written(self) -> dict[int, ModuleFigures]:
        """What went to spill files, by relation."""
        return self._flows["write"]

    @property
    def bytes_written(self) -> int:
        return sum(flow.bytes for flow in self.written.values())

    @property
    def bytes_read(self) -> int:
        """Bytes that came back from spill files; a batch read twice counts twice."""
        return sum(flow.bytes for flow in self._flows["read"].values())

    @property
    def results(self) -> int:
        return self._eddies.output_tuples

    def book(self, action: str, relation: int, rows: int, seconds: float, size: int = 0) -> None:
        """Book a batch of a source, or its end, or a batch written or read back."""
        name = f"{'Scan' if action == 'scan' else 'Spill'}({self.aliases[relation]})"
        flow = ModuleFigures(name, action, rows, rows, 1, seconds, bytes=size)
        known = self._flows[action].get(relation)
        self._flows[action][relation] = flow if known is None else known + flow

    def joined(self, figures: CellFigures, *, from_disk: bool) -> None:
        """Book an eddy that has ended, but for its scans: sources are booked where they are read."""
        tuples_in = sum(m.tuples_in for m in figures.modules if m.action == "scan")
        join = ModuleFigures("", "partition", tuples_in, figures.output_tuples, 1, figures.seconds)
        if from_disk:
            self.from_disk += join
        else:
            self.in_memory += join
        modules = tuple(module for module in figures.modules if module.action != "scan")
        self._eddies += replace(figures, modules=modules)

    def figures(self, cell: int, seconds: float) -> CellFigures:
        flows = [flow for flows in self._flows.values() for _, flow in sorted(flows.items())]
        joins = [join for join in (self.in_memory, self.from_disk) if join.calls and self.written]
        return replace(
            self._eddies,
            cell=cell,
            seconds=seconds,
            modules=(*flows, *joins, *self._eddies.modules),
            peak_bytes=peak_memory(),
            spilled_bytes=self.bytes_written,
            returned_bytes=self.bytes_read,
        )


class SpillFile:
    """Record batches of one relation, as Arrow IPC messages; removed when nothing refers to it any more."""

    def __init__(self, folder: SpillFolder, relation: int, schema: pa.Schema) -> None:
        folder.tally.files += 1
        self.path = str(Path(folder.path) / f"{folder.tally.files}-{relation}.arrow")
        self._folder, self._relation, self._schema = folder, relation, schema
        weakref.finalize(self, _remove, self.path).atexit = False
        with folder.writing():
            self._sink = folder.open(self.path)
        folder.files.add(self)

    def write(self, batch: pa.RecordBatch) -> Stored:
        """Append a batch; it can be read once the file is finished."""
        began = time.perf_counter()
        place = self._sink.tell()
        with self._folder.writing():
            self._sink.write(batch.serialize())
        size = self._sink.tell() - place
        self._folder.tally.book("write", self._relation, batch.num_rows, time.perf_counter() - began, size)
        return Stored(self, place, size)

    def finish(self) -> None:
        with self._folder.writing():
            self._sink.close()

    def batch(self, stored: Stored) -> pa.RecordBatch:
        """Return a record batch of the finished file, in memory of its own."""
        with pa.OSFile(self.path, "rb") as source:
            source.seek(stored.place)
            return pa.ipc.read_record_batch(source.read_buffer(stored.size), self._schema)


@dataclass(frozen=True)
class Stored:
    """A record batch of a spill file: where it begins there, and the bytes it takes."""

    file: SpillFile
    place: int
    size: int


class SpillFolder:
    """A fresh folder for one run, in ``parent`` or the system's folder of temporary files.

    Use it in a ``with`` statement. ``tally`` is told of what is written and read.
    """

    def __init__(self, parent: str | None, tally: Tally) -> None:
        self.tally = tally
        self.files = weakref.WeakSet[SpillFile]()
        self._parent = parent
        self.path = ""

    def __enter__(self) -> Self:
        try:
            self.path = tempfile.mkdtemp(prefix="millrace-spill-", dir=self._parent)
        except OSError as error:
            where = self._parent or tempfile.gettempdir()
            raise OptionError(
                f"option spill_folder is {where!r}, where no folder can be made ({error.strerror}): "
                "name a folder that exists and can be written to"
            ) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for file in [*self.files]:
            with suppress(ExecutionError):
                file.finish()
        shutil.rmtree(self.path, ignore_errors=True)

    def open(self, path: str) -> Any:
        return pa.OSFile(path, "wb")

    def read(self, relation: int, stored: Stored) -> pa.RecordBatch:
        """Return a stored batch.

        Raises:
            ExecutionError: The file is gone or damaged.
        """
        began = time.perf_counter()
        try:
            batch = stored.file.batch(stored)
        except (EOFError, OSError, pa.ArrowException) as error:
            alias = self.tally.aliases[relation]
            raise ExecutionError(
                f"tuples of {alias!r}, spilled to {stored.file.path}, cannot be read back: "
                f"{error}. Something else removed or changed the file; keep other programs out of "
                "the folder that spill_folder names"
            ) from error
        self.tally.book("read", relation, batch.num_rows, time.perf_counter() - began, stored.size)
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
