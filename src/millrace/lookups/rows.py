"""Rows as sources return them, as Arrow batches of the declared columns.

Where a column stands in a row is the same for all sources: under its name, or where a path says. A bind
column that a row lacks is the one it was asked for, as long as there was only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field as attribute, replace
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from millrace.errors import InputError, UnsupportedType, near
from millrace.lookups.paths import Getter
from millrace.lookups.source import name_ends
from millrace.lookups.values import ABSENT, Rules, Unfit, array_of, read_column, shown, sql_name


@dataclass(frozen=True)
class RowReader:
    """Makes batches of rows.

    Attributes:
        bound: The bind columns: rows must have them, or be given their values.
        getters: How to read a column, where that is not by its name.
    """

    schema: pa.Schema
    bound: tuple[str, ...]
    rules: Rules
    getters: Mapping[str, Getter] = attribute(default_factory=dict)

    def batch(self, rows: Sequence[Any], key: Mapping[str, Any] | None = None) -> pa.RecordBatch:
        """Return rows as a batch of the schema.

        Args:
            rows: Mappings; tuples and lists of all columns' values where values are native. With a getter
                for every column they can be anything.
            key: Values of the bind columns for rows that lack them, as Arrow scalars.

        Raises:
            Unfit: A row lacks a column, or has a value of another type.
        """
        columns = []
        for field, values in zip(self.schema, self._values(rows), strict=True):
            rules = replace(self.rules, absent="error") if field.name in self.bound else self.rules
            columns.append(read_column(list(values), field, rows, rules, fill=(key or {}).get(field.name)))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def read_table(self, table: pa.Table, key: Mapping[str, Any], *, pandas: bool) -> pa.RecordBatch:
        """Return a table's rows as a batch of the schema; columns that it does not name are left out.

        Args:
            table: Has a column for each of the schema's, but for those of ``key``.
            key: Values of the bind columns, if it lacks them, as Arrow scalars.
            pandas: It was a DataFrame, where whole numbers with nulls among them are floats.

        Raises:
            Unfit: A column is missing, or has a value of another type.
        """
        columns = []
        for field in self.schema:
            if field.name in table.column_names:
                given = table.column(table.column_names.index(field.name))
                columns.append(_convert(given, field, self.rules, pandas=pandas))
            elif field.name in key:
                columns.append(pa.repeat(key[field.name], table.num_rows))
            else:
                raise Unfit(f"column {field.name!r} is missing: {near(field.name, table.column_names)}")
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _values(self, rows: Sequence[Any]) -> Iterable[Iterable[Any]]:
        """Return the values of each column, ``ABSENT`` where a row lacks it."""
        names, getters = self.schema.names, self.getters
        kinds = set(map(type, rows))
        is_native = self.rules.native and not getters
        if is_native and kinds == {tuple} and set(map(len, rows)) == {len(names)}:
            return zip(*rows, strict=True)
        objects = rows
        if not kinds <= {dict} and not getters.keys() >= set(names):
            objects = list(map(self._object, rows))
        return (
            map(getters[name], rows) if name in getters else [each.get(name, ABSENT) for each in objects]
            for name in names
        )

    def _object(self, row: Any) -> Mapping[str, Any]:
        """Return a row as a mapping of its columns."""
        names = self.schema.names
        if isinstance(row, Mapping):
            return row
        if self.rules.native and hasattr(row, "_asdict"):
            return row._asdict()  # type: ignore[no-any-return]
        if self.rules.native and isinstance(row, tuple | list):
            if len(row) != len(names):
                raise Unfit(
                    f"a row has {len(row)} values, expected one for each of the columns {', '.join(names)}"
                )
            return dict(zip(names, row, strict=True))
        raise Unfit(
            f"expected a row as an object with fields {', '.join(names)}, got {shown(row, self.rules.scrub)}"
        )


def _convert(given: pa.ChunkedArray, field: pa.Field, rules: Rules, *, pandas: bool) -> pa.Array:
    kind = field.type
    array = pa.concat_arrays(given.chunks) if given.num_chunks else pa.array([], given.type)
    if t.is_dictionary(array.type):
        array = array.dictionary_decode()
    if array.type == kind:
        return array
    if _alike(array.type, kind) or (pandas and t.is_floating(array.type) and t.is_integer(kind)):
        # Digits behind microseconds are cut off, as Spark does.
        finer = t.is_timestamp(array.type) and array.type.unit == "ns"
        try:
            return array.cast(kind, safe=not finer)
        except pa.ArrowInvalid:
            pass  # the values' own conversion names the one that is wrong
    return array_of(array.to_pylist(), kind, field.name, rules)


def _alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether Arrow's own checked conversion is as strict as ours."""
    if t.is_timestamp(one) and t.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    return t.is_null(one) or any(is_from(one) and is_to(other) for is_from, is_to in _ALIKE)


_ALIKE = [
    (t.is_integer, t.is_integer),
    (t.is_integer, t.is_float64),
    (t.is_integer, t.is_decimal),
    (t.is_float32, t.is_float64),
    (t.is_decimal, t.is_decimal),
    (t.is_large_string, t.is_string),
    (t.is_string_view, t.is_string),
    (t.is_large_binary, t.is_binary),
    (t.is_binary_view, t.is_binary),
    (t.is_fixed_size_binary, t.is_binary),
]


def check_columns(columns: Mapping[str, object], schema: pa.Schema, what: str) -> None:
    """Raise an InputError for a mapped column that the schema does not have."""
    for name in columns:
        if name not in schema.names:
            raise InputError(
                f"{what} maps column {name!r}, which the lookup lacks: {near(name, schema.names)}"
            )


def check_schema(schema: pa.Schema, bound: Sequence[str]) -> None:
    """Check a lookup's columns, and that those it is asked by are among them.

    Raises:
        UnsupportedType: A column has a type that a lookup cannot have.
        InputError: The schema does not have a bind column, or it cannot be asked for.
    """
    for column in schema:
        try:
            sql_name(column.type)
        except UnsupportedType as error:
            raise UnsupportedType(f"column {column.name!r}: {error}") from None
    ends = {end for name in schema.names for end in name_ends(name)}
    for name in (column for column in bound if column not in ends):
        if name not in schema.names:
            raise InputError(f"the lookup binds column {name!r}, which it lacks: {near(name, schema.names)}")
        if t.is_nested(schema.field(name).type):
            raise InputError(
                f"the lookup binds column {name!r} of type {schema.field(name).type}, which is "
                "not a single value: bind columns are numbers, texts, dates and the like"
            )
