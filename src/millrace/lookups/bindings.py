"""Bindings on their way to a source, in the types of its columns, and its rows on their way back, by key.

A join compares in a type that may be wider than the lookup's column: an ``int`` with a ``bigint``, a date
with a timestamp. A source is asked in the column's own type; a value that this type does not have equals
nothing there. And a source may compare in its own way, so rows of keys that nobody asked for are dropped.

A key may have the ends of a closed interval beside values. A row in the intervals of several keys then
belongs to each of them, with its ends. So a join finds it by equalities, and an EOT tuple is one of values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import to_arrow
from millrace.engine.plan.evaluation import widen
from millrace.engine.stems.bindings import BindingSet, KeyedRows
from millrace.engine.tuples import KeyColumn, codes
from millrace.limits import codec
from millrace.lookups.source import Refused, name_ends

Mask = np.ndarray[Any, np.dtype[np.bool_]]


def narrow_bindings(
    bindings: pa.RecordBatch, keys: pa.Schema, between: str = ""
) -> tuple[pa.RecordBatch, Mask]:
    """Return bindings in the types of their columns, and which of them can be expressed so.

    The bindings have a column for each key, without nulls. The mask has shape ``(n,)``; rows of the batch
    outside of it mean nothing. An interval of ``between`` that ends before it begins cannot be expressed.
    """
    columns = []
    fits = np.ones(bindings.num_rows, np.bool_)
    for field in keys:
        wide = bindings.column(field.name)
        own = wide if wide.type == field.type else _cast(wide, field.type)
        if own is not wide:
            same = pc.fill_null(pc.equal(widen(own, wide.type), wide), False)
            fits &= same.to_numpy(zero_copy_only=False)
        columns.append(own)
    narrow = pa.RecordBatch.from_arrays(columns, schema=keys)
    if between:
        low, high = map(narrow.column, name_ends(between))
        fits &= pc.fill_null(pc.less_equal(low, high), False).to_numpy(zero_copy_only=False)
    return narrow, fits


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast what can be cast; what cannot becomes null, or some other value."""
    try:
        # An unsafe cast to a decimal makes values of more digits than the type has.
        return pc.cast(values, to, safe=pa.types.is_decimal(to))
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, to)
        half = len(values) // 2
        return pa.concat_arrays([_cast(values[:half], to), _cast(values[half:], to)])


def grouped(rows: pa.RecordBatch, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
    """Return the rows of these keys in the keys' order, and how many each key has.

    Rows of other keys are dropped: a source may compare in its own way, by collation for example. Rows have
    the keys' columns among theirs, in the same types. Keys are distinct and without nulls.
    """
    if keys.num_rows == 1:
        mask = None
        for name, column in zip(keys.schema.names, keys.columns, strict=True):
            same = pc.fill_null(pc.equal(rows.column(name), column[0]), False)
            mask = same if mask is None else pc.and_(mask, same)
        found = rows if pc.all(mask).as_py() is not False else rows.filter(mask)
        return found, [found.num_rows]
    index = KeyedRows(keys.schema, [KeyColumn(field.name, field.type) for field in keys.schema])
    index.append(keys, [codes(keys.column(k.name), k.type)[0] for k in index.keys])
    valid = np.ones(rows.num_rows, np.bool_)
    coded = []
    for key in index.keys:
        code, mask = codes(rows.column(key.name), key.type)
        coded.append(code)
        valid = valid if mask is None else valid & mask
    places, numbers = index.matches(coded, lambda k: rows.column(index.keys[k].name))
    kept = valid[places]
    places, numbers = places[kept], numbers[kept]
    order = np.lexsort((places, numbers))
    counts = np.bincount(numbers, minlength=keys.num_rows)
    return rows.take(pa.array(places[order])), counts.tolist()


def in_intervals(
    rows: pa.RecordBatch, keys: pa.RecordBatch, between: str
) -> tuple[pa.RecordBatch, list[int]]:
    """Return the rows of each key in the keys' order, with its ends behind, and how many each key has.

    Keys have the ends of an interval of ``between``, and values of other columns; see :func:`grouped`.

    Raises:
        Refused: They share so many rows that all of them together are too large to send.
    """
    rows = rows.filter(rows.column(between).is_valid())
    ends = keys.select([*name_ends(between)])
    own = keys.select([name for name in keys.schema.names if name not in ends.schema.names])
    groups, counts = np.zeros(keys.num_rows, np.int64), [rows.num_rows]
    if own.num_columns:
        index = BindingSet([KeyColumn(field.name, field.type) for field in own.schema])
        rows, counts = grouped(rows, index.add_rows(own))
        coded = [codes(own.column(key.name), key.type)[0] for key in index.keys]
        places, numbers = index.matches(coded, own.column)
        groups[places] = numbers
    kind = rows.schema.field(between).type
    values, low, high = (codes(column, kind)[0] for column in (rows.column(between), *ends.columns))
    order = np.lexsort((values, np.repeat(np.arange(len(counts)), counts)))
    values, stops = values[order], np.cumsum(counts)
    found = []
    for key, group in enumerate(groups.tolist()):
        here = slice(stops[group] - counts[group], stops[group])
        first = np.searchsorted(values[here], low[key])
        found.append(order[here][first : np.searchsorted(values[here], high[key], "right")])
    sizes = list(map(len, found))
    check_size((rows.nbytes / max(1, rows.num_rows) + ends.nbytes / keys.num_rows) * sum(sizes))
    rows = rows.take(to_arrow(np.concatenate(found)))
    ends = ends.take(to_arrow(np.repeat(np.arange(keys.num_rows), sizes)))
    schema = pa.schema([*rows.schema, *ends.schema])
    return pa.RecordBatch.from_arrays([*rows.columns, *ends.columns], schema=schema), sizes


def check_size(nbytes: float) -> None:
    """Raise :class:`millrace.lookups.source.Refused` where rows of an answer are too large to send."""
    if nbytes > codec.LARGEST_ATTACHMENT:
        said = f"rows of {nbytes:,.0f} bytes: bind more columns, so that a key has fewer"
        raise Refused("too large", f"{said}, or give a smaller batch")
