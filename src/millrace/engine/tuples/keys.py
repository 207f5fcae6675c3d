"""Key codes: every join key as an ``int64``, equal keys with equal codes.

Keys compare as Spark compares them after widening to the equality's type: NaN equals NaN, -0.0
equals 0.0, decimals by value whatever their scale. For types that fit, the code *is* the key and
equal codes mean equal keys (:func:`is_exact`); strings, binary values and wide decimals get a
64-bit hash, and a match must be verified.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.engine.arrays import Array, to_numpy
from millrace.engine.kernels import combine, hash_bytes
from millrace.engine.plan.evaluation import widen
from millrace.engine.plan.graph import QueryGraph
from millrace.errors import UnsupportedType

_NARROW_DECIMAL = 18


def is_exact(kind: pa.DataType) -> bool:
    """Return whether equal codes of this type mean equal keys, so that no match needs verifying."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= _NARROW_DECIMAL)
    return not (pa.types.is_string(kind) or pa.types.is_binary(kind))


def is_key_type(kind: pa.DataType) -> bool:
    """Return whether columns of this type can be join keys."""
    is_ = pa.types
    return bool(
        is_.is_boolean(kind)
        or is_.is_signed_integer(kind)
        or is_.is_floating(kind)
        or is_.is_decimal128(kind)
        or is_.is_string(kind)
        or is_.is_binary(kind)
        or is_.is_date32(kind)
        or is_.is_timestamp(kind)
    )


def codes(array: pa.Array, kind: pa.DataType) -> tuple[Array, Array | None]:
    """Return the codes of a key column.

    Args:
        array: The column, of any type that widens to ``kind``.
        kind: The type of the equality.

    Returns:
        ``int64`` codes, shape ``(n,)``, and a boolean mask of the rows whose key is not null, or
        None when none is null. The code of a null key means nothing.

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
    if pa.types.is_decimal128(kind):
        return _decimal_codes(array), valid
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _text_codes(array), valid
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    elif pa.types.is_date32(kind):
        array = array.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        array = array.view(pa.int64())
    values = to_numpy(array)
    if pa.types.is_floating(kind):
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
    """A key of a relation: ``name`` compared in ``type``; the store numbers them."""

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
        keys: list[KeyColumn] = []
        numbers: dict[tuple[str, str], int] = {}
        of_class: dict[int, int] = {}
        same: list[tuple[int, int]] = []
        for role in graph.roles(relation):
            for number, attribute in enumerate(graph.classes):
                for column in attribute.columns(role):
                    key = numbers.setdefault((column, str(attribute.type)), len(keys))
                    if key == len(keys):
                        keys.append(KeyColumn(column, attribute.type))
                    if role != relation:
                        continue
                    first = of_class.setdefault(number, key)
                    if first != key:
                        same.append((first, key))
        time: int | None = None
        if graph.windows and (window := graph.windows[relation]) is not None:
            time = numbers.setdefault((window.column, str(window.type)), len(keys))
            if time == len(keys):
                keys.append(KeyColumn(window.column, window.type))
        return cls(tuple(keys), of_class, tuple(same), time)
