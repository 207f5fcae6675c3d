"""Arrow arrays that grow in place: what comes is copied once, and what is there only when room runs out."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from millrace.engine.arrays import Array, extend, to_numpy

_SPARE = 1.25
"""Times what it needs that a buffer gets when it has no room."""


class Growing:
    """Appended values of one type, in Arrow's buffers with room behind them.

    Arrays that :meth:`view` has returned stay what they are: they end before what is appended later.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._has_ends = any(is_kind(kind) for is_kind in (t.is_string, t.is_binary, t.is_list, t.is_map))
        self._bits = 0 if self._has_ends or t.is_nested(kind) or t.is_null(kind) else kind.bit_width
        self._size = 0
        self._valid: Array | None = None  # bits; None while there is no null
        self._ends = np.zeros(1, np.int32)
        self._data = np.empty(0, np.uint8)
        self._parts: list[Growing] = []

    def append(self, array: pa.Array) -> None:
        """Add the values of an array of the type."""
        kind, start, size, parts = self._kind, array.offset, len(array), list[pa.Array]()
        if not size:
            return
        if array.null_count and self._valid is None:
            self._valid = np.full(self._size // 8 + 1, 0xFF, np.uint8)
        if self._valid is not None:
            self._valid = _extend_bits(self._valid, self._size, to_numpy(array.is_valid()))
        low, high, held = (place * self._bits // 8 for place in (start, start + size, self._size))
        if self._has_ends:
            ends = np.frombuffer(array.buffers()[1], np.int32)[start : start + size + 1]
            low, high, held = int(ends[0]), int(ends[-1]), int(self._ends[self._size])
            self._ends = extend(self._ends, self._size + 1, ends[1:] + np.int32(held - low), _SPARE)
        if t.is_struct(kind):
            parts = [array.field(number) for number in range(kind.num_fields)]
        elif t.is_nested(kind):
            parts = [array.values.slice(low, high - low)]
        elif t.is_boolean(kind):
            self._data = _extend_bits(self._data, self._size, to_numpy(array))
        elif not t.is_null(kind):
            data = array.buffers()[-1]  # of nulls alone there may be none, and anything may stand there
            new = np.zeros(high, np.uint8) if data is None else np.frombuffer(data, np.uint8)
            self._data = extend(self._data, held, new[low:high], _SPARE)
        self._parts = self._parts or [Growing(part.type) for part in parts]
        for grown, part in zip(self._parts, parts, strict=True):
            grown.append(part)
        self._size += size

    def view(self) -> pa.Array:
        """Return all values, without a copy."""
        if not self._size or t.is_null(self._kind):
            return pa.nulls(self._size, self._kind)
        buffers = [None if self._valid is None else pa.py_buffer(self._valid)]
        buffers += [pa.py_buffer(self._ends)] if self._has_ends else []
        # Without the room: readers see a buffer as so many values.
        used = int(self._ends[self._size]) if self._has_ends else -(-self._size * self._bits // 8)
        buffers += [] if t.is_nested(self._kind) else [pa.py_buffer(self._data[:used])]
        children = [part.view() for part in self._parts]
        return pa.Array.from_buffers(self._kind, self._size, buffers, children=children)


def _extend_bits(held: Array, size: int, truths: Array) -> Array:
    """Return bits with so many more behind the first ones, as :func:`extend` does with values."""
    whole, rest = divmod(size, 8)
    if rest:
        last = np.unpackbits(held[whole : whole + 1], count=rest, bitorder="little")
        truths = np.concatenate((last.view(np.bool_), truths))
    return extend(held, whole, np.packbits(truths, bitorder="little"), _SPARE)
