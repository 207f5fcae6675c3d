"""Rows as sources return them, as Arrow batches of the declared columns.

Where a column stands in a row is the same for all sources: under its name, or where a path says. A bind
column that a row lacks is the one it was asked for, as long as there was only one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.errors import InputError, UnsupportedType, near
from millrace.lookups.paths import Getter
from millrace.lookups.strict import ABSENT, Rules, Unfit, array_of, lacks, shown, sql_name


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
    getters: Mapping[str, Getter] = field(default_factory=dict)

    def batch(self, rows: Sequence[Any], key: Mapping[str, Any] | None = None) -> pa.RecordBatch:
        """Return rows as a batch of the schema.

        Args:
            rows: Mappings; tuples and lists of all columns' values where values are native. With a getter
                for every column they can be anything.
            key: Values of the bind columns for rows that lack them, as Arrow scalars.

        Raises:
            Unfit: A row lacks a column, or has a value of another type.
        """
        columns = [
            self._filled(field, values, rows, key or {})
            for field, values in zip(self.schema, self._columns(rows), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _columns(self, rows: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield the values of each column, ``ABSENT`` where a row lacks it."""
        kinds = set(map(type, rows))
        objects = kinds <= {dict}
        tuples = self.rules.native and kinds == {tuple} and set(map(len, rows)) == {len(self.schema)}
        for position, name in enumerate(self.schema.names):
            read = self.getters.get(name)
            if read is not None:
                yield [read(row) for row in rows]
            elif objects:
                yield [row.get(name, ABSENT) for row in rows]
            elif tuples:
                yield [row[position] for row in rows]
            else:
                yield [self._value(row, position, name) for row in rows]

    def _filled(
        self, column: pa.Field, values: list[Any], rows: Sequence[Any], key: Mapping[str, Any]
    ) -> pa.Array:
        if lacks(values):
            if column.name in key:
                absent = [value is ABSENT for value in values]
                if all(absent):
                    return pa.repeat(key[column.name], len(values))
                there = [None if value is ABSENT else value for value in values]
                found = array_of(there, column.type, column.name, self.rules)
                return pc.if_else(pa.array(absent), key[column.name], found)
            if self.rules.absent == "null" and column.name not in self.bound:
                values = [None if value is ABSENT else value for value in values]
            else:
                raise self._lacking(column, rows[next(i for i, v in enumerate(values) if v is ABSENT)])
        return array_of(values, column.type, column.name, self.rules)

    def _value(self, row: Any, position: int, name: str) -> Any:
        if isinstance(row, Mapping):
            return row.get(name, ABSENT)
        if self.rules.native and hasattr(row, "_asdict"):
            return getattr(row, name, ABSENT)
        if self.rules.native and isinstance(row, tuple | list):
            if len(row) != len(self.schema):
                raise Unfit(
                    f"a row has {len(row)} values, expected one for each of the columns "
                    f"{', '.join(self.schema.names)}"
                )
            return row[position]
        raise Unfit(
            f"expected a row as an object with fields {', '.join(self.schema.names)}, got {shown(row)}"
        )

    def _lacking(self, column: pa.Field, row: Any) -> Unfit:
        if isinstance(row, Mapping) and column.name not in self.getters:
            return Unfit(f"column {column.name!r} is not in a row: {near(column.name, map(str, row))}")
        return Unfit(
            f"column {column.name!r} is not where its path says, in the row {shown(row, self.rules.scrub)}"
        )


def check_columns(columns: Mapping[str, object], schema: pa.Schema, what: str) -> None:
    """Raise an InputError for a mapped column that the schema does not have."""
    for name in columns:
        if name not in schema.names:
            raise InputError(
                f"{what} maps column {name!r}, which the lookup lacks: {near(name, schema.names)}"
            )


def check_bound(bound: Sequence[str], schema: pa.Schema) -> None:
    """Raise an InputError for a bind column that the schema does not have, or that cannot be asked for."""
    for name in bound:
        if name not in schema.names:
            raise InputError(f"the lookup binds column {name!r}, which it lacks: {near(name, schema.names)}")
        if pa.types.is_nested(schema.field(name).type):
            raise InputError(
                f"the lookup binds column {name!r} of type {schema.field(name).type}, which is "
                "not a single value: bind columns are numbers, texts, dates and the like"
            )


def check_types(schema: pa.Schema) -> None:
    """Raise an UnsupportedType for a column of a type that a lookup cannot have."""
    for column in schema:
        try:
            sql_name(column.type)
        except UnsupportedType as error:
            raise UnsupportedType(f"column {column.name!r}: {error}") from None
