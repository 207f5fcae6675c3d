"""Key codes: every join key as an ``int64``, equal keys with equal codes.

Keys compare as Spark compares them after widening to the equality's type: NaN equals NaN, -0.0
equals 0.0, decimals by value whatever their scale. For types that fit, the code *is* the key and
equal codes mean equal keys (:func:`is_exact`); strings, binary values and wide decimals get a
64-bit hash, and a match must be verified (:func:`are_equal`). Everywhere a null matches nothing; only
duplicates of whole tuples have nulls that are identical (:func:`are_identical`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from millrace.engine.arrays import Array, is_true, scalar, to_arrow, to_numpy
from millrace.engine.kernels import combine, hash_bytes
from millrace.engine.plan.evaluation import widen
from millrace.engine.plan.graph import QueryGraph
from millrace.errors import UnsupportedType

_NARROW_DECIMAL = 18
_KEY_KINDS = (
    t.is_boolean, t.is_signed_integer, t.is_floating, t.is_decimal128, t.is_string, t.is_binary, t.is_date32,
    t.is_timestamp,
)  # fmt: skip

Values = Callable[[int], pa.Array]
"""Returns the values of key number ``k`` for all tuples, in the key's type."""


def is_exact(kind: pa.DataType) -> bool:
    """Return whether equal codes of this type mean equal keys, so that no match needs verifying."""
    if t.is_decimal(kind):
        return bool(kind.precision <= _NARROW_DECIMAL)
    return not (t.is_string(kind) or t.is_binary(kind))


def is_key_type(kind: pa.DataType) -> bool:
    """Return whether columns of this type can be join keys."""
    return any(is_kind(kind) for is_kind in _KEY_KINDS)


def codes(array: pa.Array, kind: pa.DataType) -> tuple[Array, Array | None]:
    """Return the ``int64`` codes of a key column in the equality's type, and which of its keys are not null.

    That is a mask, None when none is null; the code of a null key means nothing.

    Raises:
        UnsupportedType: ``kind`` cannot be a key.
    """
    if not is_key_type(kind):
        raise UnsupportedType(
            f"a column of type {kind} cannot be a join key here; expected a number, string, binary, "
            "boolean, date or timestamp"
        )
    array = widen(array, kind)
    valid = None if array.null_count == 0 else to_numpy(array.is_valid())
    if t.is_decimal128(kind):
        return _decimal_codes(array), valid
    if t.is_string(kind) or t.is_binary(kind):
        return _text_codes(array), valid
    if t.is_date32(kind):
        array = array.view(pa.int32())
    elif t.is_timestamp(kind):
        array = array.view(pa.int64())
    values = to_numpy(array)
    if t.is_floating(kind):
        return _float_codes(values.astype(np.float64)), valid
    return values.astype(np.int64, copy=False), valid


def _float_codes(values: Array) -> Array:
    values = values + 0.0  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan  # one bit pattern for all NaNs
    return values.view(np.int64)


def _decimal_codes(array: pa.Array) -> Array:
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
    words = words[array.offset : array.offset + len(array)]
    if array.type.precision <= _NARROW_DECIMAL:
        return np.ascontiguousarray(words[:, 0])
    hashed: Array = combine(np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1]))
    return hashed


def _text_codes(array: pa.Array) -> Array:
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    hashed: Array = hash_bytes(places, content)
    return hashed


class KeyColumn:
    """A key of a relation: ``name`` compared in ``type``, of which equal codes decide if it is ``exact``."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name = name
        self.type = kind
        self.exact = is_exact(kind)


@dataclass(frozen=True)
class KeyLayout:
    """The keys of one relation.

    Attributes:
        keys: One for each column in an attribute class of this relation or of one that shares its tuples.
        of_class: Key number by class number (the first column, should a class hold several).
        same: Pairs of key numbers that one class ties together; they must be equal in every row.
        time: Number of the key that a sliding window goes by; a null in it matches nothing.
    """

    keys: tuple[KeyColumn, ...]
    of_class: dict[int, int]
    same: tuple[tuple[int, int], ...]
    time: int | None = None

    @classmethod
    def of(cls, graph: QueryGraph, relation: int) -> KeyLayout:
        """Lay out the keys of relation number ``relation``."""
        keys: dict[tuple[str, str], KeyColumn] = {}
        of_class: dict[int, int] = {}
        same: list[tuple[int, int]] = []

        def number(column: str, kind: pa.DataType) -> int:
            keys.setdefault((column, str(kind)), KeyColumn(column, kind))
            return list(keys).index((column, str(kind)))

        for role in graph.roles(relation):
            for place, attribute in enumerate(graph.classes):
                for column in attribute.columns(role):
                    key = number(column, attribute.type)
                    if role == relation and (first := of_class.setdefault(place, key)) != key:
                        same.append((first, key))
        window = graph.windows[relation] if graph.windows else None
        time = None if window is None else number(window[0].column, window[1])
        return cls(tuple(keys.values()), of_class, tuple(same), time)


def are_equal(key: KeyColumn, one: pa.Array, other: pa.Array) -> Array:
    """Return where values of a key whose codes do not decide are equal, shape ``(n,)``."""
    return is_true(pc.equal(widen(one, key.type), widen(other, key.type)))


def are_identical(key: KeyColumn, one: pa.Array, other: pa.Array) -> Array:
    """Return where values of any key are equal or both null, shape ``(n,)``."""
    (a, own), (b, others) = codes(one, key.type), codes(other, key.type)
    equal: Array = a == b
    if not key.exact:
        equal = equal & are_equal(key, one, other)
    if own is None and others is None:
        return equal
    all_ = np.ones(len(equal), np.bool_)
    own, others = all_ if own is None else own, all_ if others is None else others
    return np.where(own & others, equal, own == others)


def first_of_equal(keys: Sequence[KeyColumn], coded: Sequence[Array], values: Values, *nulls: Array) -> Array:
    """Return the positions, ascending, of the first of each group of tuples with equal keys, at least one.

    ``values`` are asked only for keys whose codes do not decide. ``nulls`` tell which keys are null, where
    some are; nulls of a key have one code.
    """
    columns = [*nulls]
    for number, (key, column) in enumerate(zip(keys, coded, strict=True)):
        if not key.exact:
            places = values(number).dictionary_encode().indices
            column = to_numpy(pc.fill_null(places, scalar(-1, places.type)) if places.null_count else places)
        columns.append(column)
    order, is_first = group(columns)
    return np.sort(order[is_first])


def group(columns: Sequence[Array]) -> tuple[Array, Array]:
    """Return an order in which equal tuples stand together, else as they came, and which are the first ones.

    The columns are those of the tuples, and each of shape ``(n,)``.
    """
    order = np.lexsort(columns)
    is_first = np.zeros(len(order), np.bool_)
    is_first[:1] = True
    for column in columns:
        ordered = column[order]
        is_first[1:] |= ordered[1:] != ordered[:-1]
    return order, is_first


def keyed(
    batch: pa.RecordBatch, keys: Sequence[KeyColumn], same: Sequence[tuple[int, int]] = ()
) -> tuple[pa.RecordBatch, list[Array]]:
    """Return the rows that can match at all, and their key codes.

    A row with a null key meets no equality of an inner join, so it is dropped here, once and for
    all; so is a row whose two columns of one attribute class differ (``same`` lists such pairs of
    keys).
    """
    both = [codes(batch.column(key.name), key.type) for key in keys]
    coded = [code for code, _ in both]
    masks = [valid for _, valid in both if valid is not None]
    mask = reduce(np.logical_and, masks) if masks else None
    if same:
        tied = are_tied(batch, keys, coded, same)
        mask = tied if mask is None else mask & tied
    if mask is None or mask.all():
        return batch, coded
    return batch.filter(to_arrow(mask)), [c[mask] for c in coded]


def are_tied(
    batch: pa.RecordBatch, keys: Sequence[KeyColumn], coded: Sequence[Array], same: Sequence[tuple[int, int]]
) -> Array:
    """Return the rows in which both keys of each of these pairs are equal, shape ``(n,)``."""
    tied = np.ones(batch.num_rows, np.bool_)
    for a, b in same:
        tied &= coded[a] == coded[b]
        if not keys[a].exact:
            tied &= are_equal(keys[a], batch.column(keys[a].name), batch.column(keys[b].name))
    return tied
