"""Arrays in the types and orders in which partial results are merged."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t


def with_digits(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return decimals of the same scale under another precision, which their values are known to fit.

    A cast would look at every value, which takes longer than to sum them up.
    """
    if column.type == kind:
        return column
    chunks = [pa.Array.from_buffers(kind, len(c), c.buffers(), c.null_count, c.offset) for c in column.chunks]
    return pa.chunked_array(chunks, kind)


def in_order(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floating-point numbers as whole numbers in Spark's order, in which NaN is the greatest.

    The same again turns them back (:func:`out_of_order`).
    """
    kind = pa.int64() if t.is_float64(column.type) else pa.int32()
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return _flipped(pa.chunked_array([chunk.view(kind) for chunk in one_nan.chunks], kind))


def out_of_order(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return what :func:`in_order` made as the numbers of type ``kind`` that it was."""
    return pa.chunked_array([chunk.view(kind) for chunk in _flipped(column).chunks], kind)


def _flipped(bits: pa.ChunkedArray) -> pa.ChunkedArray:
    """Flip all bits but the sign of the negative ones: greater negatives have smaller bits."""
    all_but_sign = pa.scalar((1 << (bits.type.bit_width - 1)) - 1, bits.type)
    mask = pc.if_else(pc.less(bits, pa.scalar(0, bits.type)), all_but_sign, pa.scalar(0, bits.type))
    return pc.bit_wise_xor(bits, mask)
