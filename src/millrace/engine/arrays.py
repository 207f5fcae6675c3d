"""Arrow's arrays and scalars of values of Python's and numpy's, and back to numpy, without pandas; batches.

``pa.array`` and ``pa.scalar`` load pandas, to ask whether what they get is of it: 300 modules, 35 MB and half
a second, in every worker. So do ``to_numpy`` of arrays, and kernels that are given a plain number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

Array = np.ndarray[Any, np.dtype[Any]]

_EPOCH = date(1970, 1, 1).toordinal()

_LEAST = 1024
"""Values that an array which grows has room for, at least."""


def _bits(truths: Array) -> Array:
    return np.packbits(truths, bitorder="little")


def extend(held: Array, size: int, new: Array, room: float = 2) -> Array:
    """Return an array whose first ``size`` values are those of ``held`` and whose next are the new ones.

    That is the same array as long as it has room; else a copy that has room for ``room`` times as many.
    """
    last = size + len(new)
    if last > len(held):
        grown = np.empty(max(int(room * last), _LEAST), new.dtype)
        grown[:size] = held[:size]
        held = grown
    held[size:last] = new
    return held


def to_arrow(values: Array, nulls: Array | None = None) -> pa.Array:
    """Return one-dimensional numbers or truths as an Arrow array, which has numbers in the same memory.

    ``nulls`` is true where they are null; None for nowhere.
    """
    kind = pa.from_numpy_dtype(values.dtype)
    data = _bits(values) if t.is_boolean(kind) else np.ascontiguousarray(values)
    valid = None if nulls is None else pa.py_buffer(_bits(~nulls))
    return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(data)])


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return what ``pa.array`` makes of values of Python's.

    It makes it indeed where there are nulls beside others, and of types that are rare.
    """
    own = {*map(type, values)}
    if own <= {type(None)}:
        return pa.nulls(len(values), kind)
    if (t.is_string(kind) and own == {str}) or (t.is_binary(kind) and own == {bytes}):
        parts = [value.encode() if isinstance(value, str) else value for value in values]
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(parts))]
        return pa.Array.from_buffers(kind, len(parts), buffers)
    for is_kind, python in ((t.is_integer, int), (t.is_floating, float), (t.is_boolean, bool)):
        if is_kind(kind) and own == {python}:
            return to_arrow(np.array(values, kind.to_pandas_dtype()))
    if t.is_date32(kind) and own == {date}:
        return to_arrow(np.array([value.toordinal() - _EPOCH for value in values], np.int32)).view(kind)
    is_time = t.is_timestamp(kind) and own == {datetime}
    zoned = is_time and {value.tzinfo is not None for value in values} == {kind.tz is not None}
    if zoned or (t.is_decimal128(kind) and own == {Decimal}):
        return array_of([*map(str, values)], pa.string()).cast(kind)
    return pa.array(values, kind)


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return what ``pa.scalar`` makes of a value of Python's, or of a scalar."""
    if isinstance(value, pa.Scalar):
        return value if value.type == kind else pa.scalar(value, kind)
    return array_of([value], kind)[0]


def to_numpy(array: pa.Array) -> Array:
    """Return numbers, without a copy, or truths; where a null is, anything may stand."""
    kind, first, size = array.type, array.offset, len(array)
    data = array.buffers()[1]
    if data is None or not size:
        return np.zeros(size, kind.to_pandas_dtype())
    if not t.is_boolean(kind):
        return np.frombuffer(data, kind.to_pandas_dtype())[first : first + size]
    octets = np.frombuffer(data, np.uint8)[first // 8 :]
    bits = np.unpackbits(octets, count=first % 8 + size, bitorder="little")
    return bits[first % 8 :].view(np.bool_)


def ends_of(chunks: Sequence[pa.Array]) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the least and the greatest value in arrays; None where there is none, or no order."""
    try:
        found = pc.min_max(pa.chunked_array(chunks))
    except pa.ArrowException:
        return None
    return (found["min"], found["max"]) if found["min"].is_valid else None


def is_true(truth: pa.Array) -> Array:
    """Return where a truth is true; it is not where it is unknown."""
    found = to_numpy(truth)
    return found & to_numpy(truth.is_valid()) if truth.null_count else found


def whole(column: Any) -> pa.Array:
    """Return an array or a chunked array as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.unify_dictionaries().combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def fixed_width(kind: pa.DataType) -> int | None:
    """Return the bytes one value takes in memory, or None when that varies."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return None


def row_bytes(schema: pa.Schema, varying: int) -> int:
    """Return about how many bytes a row takes, if a value of a type without a fixed width takes so many."""
    return sum(fixed_width(field.type) or varying for field in schema)


def counted(rows: int) -> pa.RecordBatch:
    """Return a batch of no columns that has ``rows`` rows."""
    return pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))


def sliced(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in even slices of at most so many rows; nothing without a row."""
    size = -(-batch.num_rows // max(1, -(-batch.num_rows // rows)))
    for low in range(0, batch.num_rows, max(1, size)):
        yield batch.slice(low, size)


def gathered(
    batches: Iterable[pa.RecordBatch], rows: int, size: float = math.inf
) -> Iterator[pa.RecordBatch]:
    """Yield tuples in larger batches: small ones are put together until they have so many rows, or bytes.

    One that has half of the rows already is not copied for the sake of a few more.
    """
    parts, count, held = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        parts.append(batch)
        count += batch.num_rows
        held += int(batch.nbytes)
        if count >= rows or held >= size or (len(parts) == 1 and count >= rows // 2):
            yield joined(parts)
            parts, count, held = [], 0, 0
    if parts:
        yield joined(parts)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one, of a single one itself."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def zeros(kind: pa.DataType, rows: int) -> pa.Array:
    """Return zeros or empty texts; nulls for nested types."""
    nulls = pa.nulls(rows, kind)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return nulls
    return pa.Array.from_buffers(kind, rows, [None, *nulls.buffers()[1:]])
