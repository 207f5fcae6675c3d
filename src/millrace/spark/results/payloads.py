"""Bytes that are kept in order, on disk once they are many, and seldom read again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from io import FileIO

IN_MEMORY = 1 << 20
"""Bytes that are kept in memory before the file is made."""


class Payloads:
    """A list of bytes; the file has no name, so nothing is left of it however the process ends."""

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
            for each in self._in_memory:
                self._write(each)
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
