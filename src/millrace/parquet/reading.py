"""Reading row groups: filter columns first, the others only where rows survive.

A row group is decoded by pyarrow in one go, in one thread: the tasks are the parallelism. String columns that
the file keeps as a dictionary stay one until their rows are chosen. Filters are then evaluated once a
dictionary entry instead of once a row.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial, reduce
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.engine.arrays import counted, gathered, scalar, sliced, whole
from millrace.engine.plan.evaluation import compute, evaluate
from millrace.engine.plan.expressions import ColumnRef, Predicate, Value, columns_of
from millrace.errors import ReadError
from millrace.parquet.footers import footer_of
from millrace.parquet.pruning import Keeps, bounds_of, share
from millrace.parquet.read_ahead import ReadAhead
from millrace.parquet.store import State, Store
from millrace.parquet.tables import Split
from millrace.parquet.types import cast

if TYPE_CHECKING:
    from millrace.engine.eddy.ingest import ReadOrder

_NOTHING: Mapping[str, Value] = {}

# Bytes up to which small row groups are joined: rows may be few and wide.
_BATCH_BYTES = 1 << 26
# A dictionary-encoded string column takes at most about this many bytes a row in its file.
_DICTIONARY_BYTES = 4


def read_splits(
    splits: Iterable[Split],
    columns: tuple[str, ...],
    filters: tuple[Predicate, ...] = (),
    batch_size: int = 65_536,
    computed: Mapping[str, Value] = _NOTHING,
    keeps: Keeps | None = None,
    ahead: ReadAhead | None = None,
    *,
    waits: bool = False,
    order: ReadOrder | None = None,
) -> Iterator[pa.RecordBatch | None]:
    """Return the rows of the splits that pass the filters, in order.

    Args:
        splits: Row groups of one table.
        columns: The columns to return, in that order, spelled as the caller wants them.
        filters: Predicates over the table's columns; a row for which one is unknown does not pass.
        batch_size: At most this many rows in a batch; smaller leftovers are joined up to it.
        computed: Columns, by lower-case name, that are computed of others.
        keeps: Tells which row groups to leave out, beyond what was known when the splits were made. With
            ``ahead`` it is called by threads.
        ahead: Has row groups read before they are asked for.
        waits: Whether to wait for what ``ahead`` has not read yet; None comes in its place otherwise.
        order: Tells, before each row group, which of those that are left come first. It changes nothing
            where ``ahead`` reads, for a store would be asked for the footers of all files.

    Raises:
        ReadError: A file has changed or vanished since the splits were made, or is damaged.
    """
    once = cache(Store.state)
    locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def use(do: Callable[[_Group], Any], split: Split) -> Any:
        # On disks before each row group; of a store it is a request, made once a scan.
        state_of: Callable[[Store, str], State] = once if split.store.is_remote else Store.state
        try:
            with locks[split.path]:  # threads that read one file ask once for what all of them need
                group = _Group(split, state_of(split.store, split.path), computed)
            return do(group)
        except (pa.ArrowException, OSError, ValueError, IndexError) as error:
            why = split.store.explain(split.path, error) or (
                f"{error}. The file is damaged, or it changed while the query ran; "
                "write it again or run the query again"
            )
            raise ReadError(f"reading row group {split.group} of {split.path} failed: {why}") from error

    def read(group: _Group) -> pa.RecordBatch:
        return group.read(columns, filters) if keeps is None or keeps(group.may_match) else counted(0)

    if ahead is None:
        runs: Iterable[Iterable[Split]] = [splits]
        if order is not None:
            runs = _in_order(splits, order, partial(use, lambda group: order.grade(group.may_match)))
        # Rows are not held back for less wanted ones to come together with them.
        return chain.from_iterable(_even(map(partial(use, read), run), batch_size) for run in runs)
    reads = [(split.bytes, partial(use, read, split)) for split in splits]
    return _even(ahead.batches(reads, waits=waits), batch_size)


def _in_order(
    splits: Iterable[Split], order: ReadOrder, grade: Callable[[Split], int]
) -> Iterator[Iterator[Split]]:
    """Yield splits of one grade at a time, the highest first, as it is when the next one is asked for.

    Each split comes once. A run of them ends where the next has another grade, or other rows are wanted.
    """
    left, wanted = deque((0, split) for split in splits), order.wanted[:0]

    def take() -> Iterator[Split]:
        order.coming = left[0][0]
        while left and left[0][0] == order.coming:
            yield left.popleft()[1]

    while left:
        if order.wanted != wanted:
            wanted = order.wanted
            graded = [(grade(split), split) for _, split in left]
            left = deque(sorted(graded, key=lambda pair: -pair[0]))
        yield take()


def _even(groups: Iterable[pa.RecordBatch | None], size: int) -> Iterator[pa.RecordBatch | None]:
    """Yield batches of at most so many rows; small ones are joined as long as nothing stalls."""
    for is_stalled, some in groupby(groups, lambda group: group is None):
        if is_stalled:
            yield from some
        else:
            for batch in gathered(some, size, _BATCH_BYTES):
                yield from sliced(batch, size)


class _Group:
    """One row group being read."""

    def __init__(self, split: Split, state: State, computed: Mapping[str, Value]) -> None:
        footer = footer_of(split.path, split.store, state)
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
        return share(predicate, self._split.rows, bounds) > 0

    def read(self, columns: tuple[str, ...], filters: tuple[Predicate, ...]) -> pa.RecordBatch:
        rows = self._split.rows
        mask: pa.Array | None = None
        first: dict[str, pa.Array] = {}
        if filters:
            refs = {ref for predicate in filters for ref in columns_of(predicate)}
            first = self._decode(sorted({ref.column.lower() for ref in refs}))
            values = {ref: first[ref.column.lower()] for ref in refs}
            mask = reduce(pc.and_kleene, (_truth(predicate, values) for predicate in filters))
            rows = mask.true_count
        if not columns or not rows:
            return counted(rows)
        arrays = {**first, **self._decode(sorted({name.lower() for name in columns} - first.keys()))}
        batch = pa.RecordBatch.from_arrays([arrays[name.lower()] for name in columns], names=list(columns))
        if mask is not None and rows < self._split.rows:
            batch = batch.filter(mask)
        return pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns], names=list(columns))

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
        # A reader belongs to one thread.
        file = _open(self._split.store, self._split.path, self._state, dictionaries, threading.get_ident())
        table = file.read_row_group(self._split.group, columns=stored, use_threads=False)
        for name in stored:
            array = whole(table.column(name))
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


@lru_cache(maxsize=16)
def _open(store: Store, path: str, state: State, dictionaries: tuple[str, ...], _thread: int) -> Any:
    """Return an open file; a few stay open, because a task reads many row groups of one file."""
    return pq.ParquetFile(
        store.source(path),
        metadata=footer_of(path, store, state).metadata,
        read_dictionary=list(dictionaries),
        coerce_int96_timestamp_unit="us",
        # Requests take their time: the pieces of all columns are asked for at once, neighbours as one.
        pre_buffer=store.is_remote,
    )


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
