"""A Parquet table as its footers describe it, and the pieces of it that tasks read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from millrace.engine.arrays import fixed_width
from millrace.engine.plan.expressions import And, Predicate, Value, columns_of, type_of
from millrace.errors import InputError, near
from millrace.parquet.footers import Footer, footers_of
from millrace.parquet.pruning import bounds_of, share
from millrace.parquet.store import DISKS, State, Store

_TEXT_BYTES = 16  # a guess


@dataclass(frozen=True)
class ParquetFile:
    """One file of a table: its path, and the value of each partition column for all of its rows.

    ``state`` is what a store's listing says of it, None where that is asked of the file.
    """

    path: str
    partition: tuple[Any, ...] = ()
    state: State | None = None


@dataclass(frozen=True)
class Split:
    """One row group of a table: the unit of work of a scan.

    Attributes:
        group: The row group's number in the file.
        rows: Its number of rows, before filters.
        bytes: The size in memory of the columns that the scan reads, in bytes (an estimate).
        constants: The columns that have one value in all rows: name, type and value of each. These are
            partition columns, and columns that the file lacks, which are null.
        state: What the file has to be like still, None where the number of rows tells.
        passing: Share of its rows that is expected to pass the filters.
    """

    path: str
    group: int
    rows: int
    bytes: int
    constants: tuple[tuple[str, pa.DataType, Any], ...] = ()
    store: Store = DISKS
    state: State | None = None
    passing: float = 1.0


@dataclass(frozen=True)
class ParquetTable:
    """A file, or several files of one schema, possibly in Hive-partitioned folders.

    Files may lack columns, which are null then, and spell them in another case.

    Attributes:
        path: As the user named it.
        files: All files, in the order of their paths.
        schema: The columns under Spark's types, partition columns last, all nullable.
        unsupported: Why Spark has to read the table itself; None when it can be scanned directly.
            The schema is empty then.
        computed: Further columns, which are computed of others when rows are read.
        may_grow: Whether the same name may mean more files later without anybody saying so.
        store: Where all files are.
    """

    path: str
    files: tuple[ParquetFile, ...]
    schema: pa.Schema = field(compare=False)
    partition_columns: tuple[str, ...] = ()
    unsupported: str | None = None
    may_grow: bool = False
    computed: tuple[tuple[str, Value], ...] = field(default=(), compare=False)
    store: Store = DISKS

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)

    @property
    def states(self) -> tuple[tuple[str, State], ...]:
        """Every file with its time and size, as they are now where no listing said them."""
        return tuple((file.path, file.state or self.store.state(file.path)) for file in self.files)

    def current_states(self) -> tuple[tuple[str, State | None], ...]:
        """Return every file with its time and size as they are now; None for one that is gone from a store.

        Raises:
            InputError: A file is gone from a disk, or the store does not list them.
        """
        if not self.store.is_remote:
            return self.states
        listed = self.store.around(self.paths)
        return tuple((path, listed.get(path)) for path in self.paths)

    @property
    def rows(self) -> int:
        """Number of rows in all files."""
        return sum(sum(footer.rows) for footer in self.footers)

    @cached_property
    def footers(self) -> tuple[Footer, ...]:
        """Every file's footer, in the order of ``files``: as they were when first asked for."""
        return footers_of(self.paths, self.store, [file.state for file in self.files])

    @cached_property
    def _names(self) -> dict[str, str]:
        return {name.lower(): name for name in self.schema.names}

    def with_computed(self, values: tuple[tuple[str, Value], ...]) -> ParquetTable:
        """Return the same table with further columns that are computed of its own."""
        if not values:
            return self
        fields = [pa.field(name, type_of(value)) for name, value in values]
        made = replace(self, schema=pa.schema([*self.schema, *fields]), computed=(*self.computed, *values))
        made.__dict__["footers"] = self.footers  # what was planned with, and not asked for again
        return made

    def stored(self, columns: Iterable[str]) -> set[str]:
        """Return the columns of the files that have to be read to give some, computed ones among them."""
        values = dict(self.computed)
        found = set(map(self.resolve, columns))
        needed = {ref.column for column in found & values.keys() for ref in columns_of(values[column])}
        return (found - values.keys()) | set(map(self.resolve, needed))

    def ends(self, column: str) -> tuple[int, int] | None:
        """Return the least and greatest value of a column of whole numbers, None where nothing tells."""
        if column in self.partition_columns:
            return None
        ends: list[int] = []
        for footer in self.footers:
            spelled = footer.spelled.get(column.lower())
            bounds = [] if spelled is None else zip(footer.bounds(spelled), footer.rows, strict=True)
            for (low, high, nulls), rows in bounds:
                if low is not None and high is not None:
                    ends += (low.as_py(), high.as_py())
                elif nulls != rows:
                    return None
        return (min(ends), max(ends)) if ends else (0, 0)

    def resolve(self, column: str) -> str:
        """Return the column's name as the files spell it; letter case does not matter.

        Raises:
            InputError: There is no such column.
        """
        found = self._names.get(column.lower())
        if found is None:
            raise InputError(f"{self.path} has no column {column!r}: {near(column, self.schema.names)}")
        return found

    def decoded_bytes_of(self, columns: Iterable[str]) -> int:
        """Return an estimate of the columns' size in memory in bytes."""
        wanted = set(map(self.resolve, columns))
        values = dict(self.computed)
        names = [name.lower() for name in wanted - values.keys() if name not in self.partition_columns]
        widths = [fixed_width(type_of(values[name])) or _TEXT_BYTES for name in wanted & values.keys()]
        total = self.rows * sum(widths)
        for footer in self.footers:
            own = (footer.spelled.get(name) for name in names)
            total += sum(sum(footer.decoded_bytes(name)) for name in own if name is not None)
        return total


def unsupported_table(path: str, why: str) -> ParquetTable:
    """Return a table of which nothing is known, because Spark has to read it itself."""
    return ParquetTable(path, (), pa.schema([]), (), why)


def splits(
    table: ParquetTable, filters: tuple[Predicate, ...] = (), columns: tuple[str, ...] | None = None
) -> tuple[Split, ...]:
    """Return the row groups that may hold rows that pass all filters, in the order of the files.

    ``columns`` are what will be read, for :attr:`Split.bytes`; None is every column.
    """
    wanted = table.schema.names if columns is None else columns
    computed = {name.lower() for name, _ in table.computed}
    filtered = [ref.column for predicate in filters for ref in columns_of(predicate)]
    stored = sorted(table.stored([*wanted, *filtered]).difference(table.partition_columns))
    kinds = {name: table.schema.field(name).type for name in (*table.partition_columns, *stored)}
    kept = []
    for file, footer in zip(table.files, table.footers, strict=True):
        own = {name: footer.spelled.get(name.lower()) for name in stored}
        values = dict(zip(table.partition_columns, file.partition, strict=True))
        values |= dict.fromkeys(name for name, spelled in own.items() if spelled is None)
        constants = tuple((name, kinds[name], value) for name, value in values.items())
        fixed = {name.lower(): (kind, value) for name, kind, value in constants}
        sizes = [footer.decoded_bytes(spelled) for spelled in own.values() if spelled is not None]
        for group, rows in enumerate(footer.rows):
            bounds = bounds_of(footer, group, fixed, computed)
            if rows and (passing := share(And(filters), rows, bounds)):
                size = sum(each[group] for each in sizes)
                kept.append(Split(file.path, group, rows, size, constants, table.store, file.state, passing))
    return tuple(kept)
