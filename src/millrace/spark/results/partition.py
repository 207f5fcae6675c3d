"""The rows of one partition, each exactly once although its task may run more than once.

Spark runs a task again when it was lost, and may run it twice at once (speculation). Every attempt has the
same multiset of rows, in any order. So the invariant: what has been delivered is, row by row, the
maximum over all attempts of how often each has sent the row. A row counts when it comes from whichever
attempt is ahead; the others repeat it. At a commit the attempt has sent everything, so nothing else may have
been delivered.

With one attempt, which is nearly always, there is nothing to compare: its batches go into a file as
they came (in memory while they are few), to be counted if another attempt should send rows. From then
on rows are counted by their digests, in Python, some 150 bytes in memory a row.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from io import FileIO

import pyarrow as pa
import pyarrow.types as pt

from millrace.engine.arrays import array_of
from millrace.errors import ExecutionError
from millrace.limits.chunk import digest

IN_MEMORY = 1 << 20
"""Bytes that are kept in memory before the file is made."""


class Payloads:
    """Bytes that are kept in order, on disk once they are many, and seldom read again.

    The file has no name, so nothing is left of it however the process ends.
    """

    def __init__(self) -> None:
        self._in_memory: list[bytes] = []
        self._size = 0
        self._lengths: list[int] = []
        self._file: FileIO | None = None

    def append(self, payload: bytes) -> None:
        """Add bytes at the end; OSError if they cannot be written."""
        if self._file is None and self._size + len(payload) <= IN_MEMORY:
            self._in_memory.append(payload)
            self._size += len(payload)
            return
        if self._file is None:
            # No buffer: the payloads are large, and would be copied once more.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed below
            for earlier in self._in_memory:
                self._write(earlier)
            self._in_memory = []
        self._write(payload)

    def __iter__(self) -> Iterator[bytes]:
        yield from self._in_memory
        if self._file is not None:
            self._file.seek(0)
            for length in self._lengths:
                yield self._read(length)

    def close(self) -> None:
        """Forget all."""
        self._in_memory, self._size, self._lengths = [], 0, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, payload: bytes) -> None:
        assert self._file is not None
        view = memoryview(payload)
        while view:
            view = view[self._file.write(view) :]
        self._lengths.append(len(payload))

    def _read(self, length: int) -> bytes:
        assert self._file is not None
        parts = []
        while length:
            parts.append(self._file.read(length))
            length -= len(parts[-1])
        return b"".join(parts)


class Partition:
    """What has been delivered of one partition, and whether that is all of it: ``committed``."""

    def __init__(self, number: int) -> None:
        self.committed = False
        self._number = number
        self._only: int | None = None
        self._payloads = Payloads()
        self._delivered: Counter[bytes] = Counter()
        self._sent: dict[int, Counter[bytes]] = {}

    def accept(self, attempt: int, payload: bytes) -> pa.RecordBatch | None:
        """Return the rows of a batch (an Arrow IPC stream) that no attempt has sent before; None for none.

        Raises:
            ValueError: It is no batch.
            OSError: The file cannot be written.
        """
        if self.committed:
            return None
        if not self._sent and self._only in (None, attempt):
            self._only = attempt
            batch = unpacked(payload)
            self._payloads.append(payload)
            return batch
        if not self._sent:
            self._count()
        batch = unpacked(payload)
        new = self._new(self._sent.setdefault(attempt, Counter()), row_keys(batch))
        return batch.take(array_of(new, pa.int64())) if new else None

    def commit(self, attempt: int) -> None:
        """Note that an attempt has sent all its rows.

        Raises:
            ExecutionError: Another attempt had sent others.
        """
        if self.committed:
            return
        if self._only not in (None, attempt) and not self._sent:
            self._count()
        if self._sent and self._delivered != self._sent.get(attempt, Counter()):
            raise ExecutionError(
                f"partition {self._number} ran more than once, with other rows each time: its rows depend on "
                "more than its input (a random value, the time, a source that changed). Collect the "
                "result without streaming it, or make what it depends on the same in every attempt"
            )
        self.committed = True
        self.close()

    def close(self) -> None:
        """Forget what was kept."""
        self._delivered, self._sent = Counter(), {}
        self._payloads.close()

    def _count(self) -> None:
        """Turn from keeping batches to counting rows."""
        assert self._only is not None
        sent: Counter[bytes] = Counter()
        for payload in self._payloads:
            sent.update(row_keys(unpacked(payload)))
        self.close()
        self._delivered, self._sent = sent.copy(), {self._only: sent}

    def _new(self, sent: Counter[bytes], keys: list[bytes]) -> list[int]:
        """Count what an attempt has sent; returns the positions of rows that were not delivered yet."""
        new = []
        for position, key in enumerate(keys):
            sent[key] += 1
            if sent[key] > self._delivered[key]:
                self._delivered[key] = sent[key]
                new.append(position)
        return new


def unpacked(payload: bytes) -> pa.RecordBatch:
    """Return the batch in an Arrow IPC stream, without copying it.

    Raises:
        ValueError: There is none.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
            return reader.read_next_batch()
    except (StopIteration, OSError) as error:
        raise ValueError(f"no batch: {error}") from error


def row_keys(batch: pa.RecordBatch) -> list[bytes]:
    """Return a digest of each row.

    Two rows have the same one exactly if all their values are the same: null only equals null, every NaN is
    the same NaN, 0.0 and -0.0 differ, nested values are compared likewise.
    """
    if batch.num_columns == 0:
        return [digest(())] * batch.num_rows
    return [digest(row) for row in zip(*map(_values, batch.columns), strict=True)]


def _values(column: pa.Array) -> Iterator[object]:
    plain = plain_type(column.type)
    return iter((column if plain == column.type else column.cast(plain)).to_pylist())


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type whose values Python can all hold: times beyond its years become integers."""
    if pt.is_date32(kind) or pt.is_time32(kind):
        return pa.int32()
    if pt.is_temporal(kind) and not pt.is_interval(kind):
        return pa.int64()
    if pt.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size)
    if pt.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind
