"""Reading row groups: filter columns first, the others only where rows survive.

A row group is decoded by pyarrow in one go (in one thread: the tasks are the parallelism). String
columns that the file keeps as a dictionary stay one until their rows are chosen: filters are
evaluated once a dictionary entry instead of once a row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.engine.arrays import scalar
from millrace.engine.plan.evaluation import compute, evaluate
from millrace.engine.plan.expressions import ColumnRef, Predicate, Value, columns_of, type_of
from millrace.errors import ReadError
from millrace.parquet.footers import Footer, footer_of
from millrace.parquet.listing import State
from millrace.parquet.pruning import Keeps, bounds_of, may_match
from millrace.parquet.stores import DISKS, Store
from millrace.parquet.tables import Split
from millrace.parquet.types import cast, counted

_OPEN: OrderedDict[tuple[Store, str, State, tuple[str, ...]], Any] = OrderedDict()
_OPEN_LIMIT = 8
_NOTHING: Mapping[str, Value] = {}

_BATCH_BYTES = 1 << 26
"""Bytes up to which small row groups are joined: rows may be few and wide."""

# A dictionary-encoded string column takes at most about this many bytes a row in its file.
_DICTIONARY_BYTES = 4


def read_split(
    split: Split, columns: tuple[str, ...], filters: tuple[Predicate, ...] = (), batch_size: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one row group that pass the filters; see :func:`read_splits`."""
    return read_splits((split,), columns, filters, batch_size)


def read_splits(
    splits: Iterable[Split],
    columns: tuple[str, ...],
    filters: tuple[Predicate, ...] = (),
    batch_size: int = 65_536,
    computed: Mapping[str, Value] = _NOTHING,
    keeps: Keeps | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the splits that pass the filters, in order.

    Args:
        splits: Row groups of one table.
        columns: The columns to return, in that order, spelled as the caller wants them.
        filters: Predicates over the table's columns; rows for which all are true are kept.
        batch_size: At most this many rows in a batch; smaller leftovers are joined up to it.
        computed: Columns, by lower-case name, that are computed of others.
        keeps: Tells which row groups to leave out, beyond what was known when the splits were made.

    Raises:
        ReadError: A file has changed or vanished since the splits were made, or is damaged.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    asked = cache(_state)
    for split in splits:
        batch = _read(split, columns, filters, computed, keeps, asked if split.store != DISKS else _state)
        if batch is None or batch.num_rows == 0:
            continue
        if not rows and batch.num_rows >= batch_size // 2:
            yield from _slices(batch, batch_size)
            continue
        held.append(batch)
        rows += batch.num_rows
        size += int(batch.nbytes)
        if rows >= batch_size or size >= _BATCH_BYTES:
            yield from _slices(_join(held), batch_size)
            held, rows, size = [], 0, 0
    if held:
        yield from _slices(_join(held), batch_size)


def _state(store: Store, path: str) -> State:
    """Return a file's state: on disks before each row group; of a store it is a request, made once a scan."""
    return store.state(path)


def _slices(batch: pa.RecordBatch, batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield even slices of at most ``batch_size`` rows."""
    pieces = -(-batch.num_rows // batch_size)
    size = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches[0].num_columns:
        return counted(sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches)


def _read(
    split: Split,
    columns: tuple[str, ...],
    filters: tuple[Predicate, ...],
    computed: Mapping[str, Value],
    keeps: Keeps | None,
    state_of: Callable[[Store, str], State],
) -> pa.RecordBatch | None:
    try:
        state = state_of(split.store, split.path)
        group = _Group(split, footer_of(split.path, split.store, state), state, computed)
        return group.read(columns, filters) if keeps is None or keeps(group.may_match) else None
    except (pa.ArrowException, OSError, ValueError, IndexError) as error:
        told = split.store.told(split.path, error)
        if told is None:
            told = (
                f"{error}. The file is damaged, or it changed while the query ran; "
                "write it again or run the query again"
            )
        raise ReadError(f"reading row group {split.group} of {split.path} failed: {told}") from error


class _Group:
    """One row group being read."""

    def __init__(self, split: Split, footer: Footer, state: State, computed: Mapping[str, Value]) -> None:
        self._split = split
        self._footer = footer
        self._state = state
        self._constants = {name.lower(): (kind, value) for name, kind, value in split.constants}
        self._stored = footer.spelled
        self._computed = computed
        if split.state not in (None, state):
            raise ValueError("it is not the file that was there when the query was planned")
        if footer.rows[split.group] != split.rows:
            raise ValueError(f"it has {footer.rows[split.group]:,} rows, not {split.rows:,}")

    def may_match(self, predicate: Predicate) -> bool:
        """Whether a predicate may hold for one of the rows."""
        bounds = bounds_of(self._footer, self._split.group, self._constants, self._computed)
        return may_match(predicate, self._split.rows, bounds)

    def read(self, columns: tuple[str, ...], filters: tuple[Predicate, ...]) -> pa.RecordBatch:
        rows = self._split.rows
        mask: pa.Array | None = None
        first: dict[str, pa.Array] = {}
        if filters:
            refs = {ref for predicate in filters for ref in columns_of(predicate)}
            first = self._decode(sorted({ref.column.lower() for ref in refs}))
            values = {ref: first[ref.column.lower()] for ref in refs}
            mask = _conjunction(filters, values)
            rows = mask.true_count
        if not columns:
            return counted(rows)
        if rows == 0:
            return self._empty(columns)
        arrays = {**first, **self._decode(sorted({name.lower() for name in columns} - first.keys()))}
        batch = pa.RecordBatch.from_arrays([arrays[name.lower()] for name in columns], names=list(columns))
        if mask is not None and rows < self._split.rows:
            batch = batch.filter(mask)
        return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=list(columns))

    def _empty(self, columns: tuple[str, ...]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.nulls(0, self._kind(name)) for name in columns], names=list(columns)
        )

    def _kind(self, name: str) -> pa.DataType:
        if name.lower() in self._computed:
            return type_of(self._computed[name.lower()])
        if name.lower() in self._constants:
            return self._constants[name.lower()][0]
        return self._footer.schema.field(self._stored[name.lower()]).type

    def _repeats(self, lowered: str) -> bool:
        """Return whether a column is a string column that the file keeps as a dictionary."""
        name = self._stored.get(lowered)
        if name is None or not pa.types.is_string(self._footer.schema.field(name).type):
            return False
        chunk = self._footer.metadata.row_group(self._split.group).column(self._footer.leaves[name][0])
        return bool(
            chunk.has_dictionary_page and chunk.total_uncompressed_size < _DICTIONARY_BYTES * self._split.rows
        )

    def _decode(self, lowered: Iterable[str]) -> dict[str, pa.Array]:
        """Return columns by lower-case name; strings that repeat are still dictionaries."""
        result: dict[str, pa.Array] = {}
        made = [name for name in lowered if name in self._computed]
        if made:
            needed = {ref.column.lower() for name in made for ref in columns_of(self._computed[name])}
            lowered = {name for name in lowered if name not in self._computed}
            result = self._decode(sorted(needed | lowered))
            return result | {name: self._compute(self._computed[name], result) for name in made}
        for name in lowered:
            if name in self._constants:
                kind, value = self._constants[name]
                size = self._split.rows
                result[name] = pa.nulls(size, kind) if value is None else pa.repeat(scalar(value, kind), size)
        stored = [self._stored[name] for name in lowered if name not in self._constants]
        if not stored:
            return result
        dictionaries = tuple(name for name in stored if self._repeats(name.lower()))
        reader = _reader(self._split, self._footer, self._state, dictionaries)
        table = reader.read_row_group(self._split.group, columns=stored, use_threads=False)
        for name in stored:
            array = _whole(table.column(name))
            if name not in dictionaries or not pa.types.is_dictionary(array.type):
                array = cast(array, self._footer.schema.field(name).type)
            result[name.lower()] = array
        return result

    def _compute(self, value: Value, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return a computed column; of a dictionary once an entry."""
        own = {ref.column: columns[ref.column.lower()] for ref in columns_of(value)}
        first = next(iter(own.values()))
        if len(own) == 1 and pa.types.is_dictionary(first.type):
            entries, places = _entries(first)
            return compute(value, dict.fromkeys(own, entries), len(entries)).take(places)
        return compute(value, {name: _plain(column) for name, column in own.items()}, self._split.rows)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _reader(split: Split, footer: Footer, state: State, dictionaries: tuple[str, ...]) -> Any:
    """Return an open file; a few stay open, because a task reads many row groups of one file."""
    store = split.store
    key = (store, split.path, state, dictionaries)
    reader = _OPEN.get(key)
    if reader is None:
        reader = pq.ParquetFile(
            store.source(split.path),
            metadata=footer.metadata,
            read_dictionary=list(dictionaries),
            coerce_int96_timestamp_unit="us",
            **store.reading,
        )
        _OPEN[key] = reader
        if len(_OPEN) > _OPEN_LIMIT:
            _OPEN.popitem(last=False)[1].close()
    else:
        _OPEN.move_to_end(key)
    return reader


def _conjunction(filters: tuple[Predicate, ...], values: Mapping[ColumnRef, pa.Array]) -> pa.Array:
    """Return where all filters are true; a row where one is unknown does not count as true."""
    result: pa.Array | None = None
    for predicate in filters:
        truth = _truth(predicate, values)
        result = truth if result is None else pc.and_kleene(result, truth)
    assert result is not None
    return result


def _truth(predicate: Predicate, values: Mapping[ColumnRef, pa.Array]) -> pa.Array:
    refs = set(columns_of(predicate))
    ref = next(iter(refs))
    data = values[ref]
    if len(refs) == 1 and pa.types.is_dictionary(data.type):
        entries, places = _entries(data)
        return evaluate(predicate, {ref: entries}).take(places)
    return evaluate(predicate, {other: _plain(values[other]) for other in refs})


def _entries(data: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the entries of a dictionary, and the place of each row's.

    The entry after the last is null's, so that IS NULL and the like come out right.
    """
    entries = pa.concat_arrays([data.dictionary.cast(pa.string()), pa.nulls(1, pa.string())])
    return entries, data.indices.fill_null(scalar(len(entries) - 1, data.indices.type))


def _plain(array: pa.Array) -> pa.Array:
    """Return a string column without its dictionary; other columns as they are."""
    if not pa.types.is_dictionary(array.type):
        return array
    return array.dictionary.cast(pa.string()).take(array.indices)
