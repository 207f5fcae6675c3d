"""The base tuples of one data source, with every index on them: what a SteM stands on.

Relations of a block that are the same data (a self-join) are *roles* of it: each has its SteM, and all these
SteMs share one of these, so that a tuple is stored and indexed once (Raman, Deshpande & Hellerstein 2003,
section 2.2).

Rows are numbered in the order of building. Evicted rows are never matched again; the indexes are made anew
when they hold more evicted rows than others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.arrays import Array, is_true, to_arrow, to_numpy
from millrace.engine.kernels import Multimap
from millrace.engine.stems.bindings import BindingSet
from millrace.engine.stems.conditions import combined
from millrace.engine.stems.duplicates import Duplicates
from millrace.engine.stems.ordered import OrderedIndex, places
from millrace.engine.tuples import KeyColumn, KeyLayout, RelationStore, codes

Keys = tuple[int, ...]


class BaseTuples:
    """Base tuples with timestamps, roles, EOT tuples and indexes.

    Args:
        alias: The relation's name, for errors.
        schema: Its columns.
        layouts: The key layout of each role; all have the same keys.
        room: Tuples that are expected.

    Attributes:
        store: The tuples and their key codes.
        scanned: Whether some scan does, so that every tuple comes without being asked for.
        eots: The bindings for which an index has returned everything, by the columns and types bound.
        offset: Row number of the first row in the indexes.
    """

    def __init__(self, alias: str, schema: pa.Schema, layouts: list[KeyLayout], room: int = 0) -> None:
        self.store = RelationStore(schema, layouts[0].keys, room)
        self.scanned = True
        self.eots: dict[tuple[tuple[str, str], ...], BindingSet] = {}
        self.offset = 0
        self._alias = alias
        self._layouts = layouts
        self._stamps = np.empty(0, np.int64)
        self._roles = np.empty(0, np.uint64)
        self._indexes: dict[Keys, Multimap] = {}
        self._ordered: dict[tuple[str, str], tuple[OrderedIndex, pa.DataType]] = {}
        self._duplicates: Duplicates | None = None

    @property
    def complete(self) -> bool:
        """Whether a scan has returned all there is (the EOT of the relation)."""
        return self.store.complete

    @complete.setter
    def complete(self, complete: bool) -> None:
        self.store.complete = complete

    @property
    def nbytes(self) -> int:
        """Memory of tuples, codes, timestamps, roles, indexes and EOT tuples in bytes."""
        size = self.store.nbytes + sum(index.nbytes for index in self._indexes.values())
        # Room that was made and is not filled takes no memory yet.
        rows = self.store.rows - self.offset
        size += sum(array.itemsize * min(rows, len(array)) for array in (self._stamps, self._roles))
        size += sum(ordered.nbytes for ordered, _ in self._ordered.values())
        size += sum(eots.nbytes for eots in self.eots.values())
        return size + (0 if self._duplicates is None else self._duplicates.nbytes)

    @property
    def least(self) -> int:
        """The part of :attr:`nbytes` that indexes take however few rows they have."""
        return sum(index.least for index in self._indexes.values())

    def as_set(self) -> None:
        """Drop duplicates of whole tuples from now on; to be called before the first is built."""
        self._duplicates = Duplicates(self._alias, self.store.schema)

    def coded(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Array]]:
        """Return the rows that can match in some role, and their key codes."""
        keys = self.store.keys
        coded = [codes(batch.column(key.name), key.type)[0] for key in keys]
        roles = self._roles_of(batch, coded)
        if roles.all():
            return batch, coded
        return batch.filter(to_arrow(roles != 0)), [c[roles != 0] for c in coded]

    def append(self, chunk: pa.RecordBatch, coded: list[Array], stamp: int | None) -> Array:
        """Append rows that are not duplicates, and return their positions in ``chunk``.

        Args:
            chunk: Rows of the relation.
            coded: Their key codes.
            stamp: Timestamp of the first row appended, others count up from it by the number of roles.
        """
        positions = np.arange(chunk.num_rows)
        if self._duplicates is not None:
            positions = self._duplicates.fresh(chunk, self.store)
            if len(positions) < chunk.num_rows:
                chunk, coded = chunk.take(to_arrow(positions)), [c[positions] for c in coded]
        first = self.store.rows
        self.store.append(chunk, coded)
        for keys, index in self._indexes.items():
            index.insert(combined([coded[k] for k in keys]))
        for (column, _), (ordered, kind) in self._ordered.items():
            ordered.insert(*places(chunk.column(column), kind))
        if stamp is not None:
            stamps = stamp + np.arange(chunk.num_rows) * len(self._layouts)
            self._stamps = _appended(self._stamps, first - self.offset, stamps)
        if len(self._layouts) > 1:
            self._roles = _appended(self._roles, first - self.offset, self._roles_of(chunk, coded))
        return positions

    def stamps(self, rows: Array, role: int) -> Array:
        """Return the timestamps that rows have in a role: a tuple comes later in a later role."""
        stamps: Array = self._stamps[rows - self.offset] + role
        return stamps

    def older(self, stamps: Array, role: int) -> Array:
        """Return for each timestamp the number of the first row that is not older in that role, ``int32``."""
        mine = self._stamps[: self.store.rows - self.offset]
        return (np.searchsorted(mine, stamps - role) + self.offset).astype(np.int32)

    def in_role(self, rows: Array, role: int) -> Array | None:
        """Return which rows can match in a role; None when there is but one."""
        if len(self._layouts) == 1:
            return None
        roles: Array = self._roles[rows - self.offset] >> np.uint64(role) & np.uint64(1)
        return roles.astype(np.bool_)

    def index(self, keys: Keys) -> Multimap:
        """Return the index on these keys together; its row 0 is row ``offset``."""
        index = self._indexes.get(keys)
        if index is None:
            rows = np.arange(self.offset, self.store.rows)
            index = self._indexes[keys] = Multimap(len(rows))
            if len(rows):
                index.insert(combined([self._held(k) for k in keys]))
        return index

    def has_index(self, keys: Keys) -> bool:
        """Whether there is an index on these keys already."""
        return keys in self._indexes

    def ordered(self, column: str, kind: pa.DataType) -> OrderedIndex:
        """Return the ordered index on a column; it goes by row numbers of the store."""
        known = self._ordered.get((column, str(kind)))
        if known is None:
            known = self._ordered[column, str(kind)] = OrderedIndex(), kind
            rows = np.arange(self.store.first, self.store.rows)
            known[0].rows = self.store.first
            if len(rows):
                known[0].insert(*places(self.store.gather(column, rows), kind))
        return known[0]

    def eot(self, keys: tuple[KeyColumn, ...]) -> BindingSet:
        """Return the bindings of these columns for which every match is here."""
        name = tuple((key.name, str(key.type)) for key in keys)
        if name not in self.eots:
            self.eots[name] = BindingSet(keys)
        return self.eots[name]

    def evict(self, below: int) -> None:
        """Drop the rows below this number from tuples, codes and indexes, amortised."""
        self.store.forget(below)
        first = self.store.first
        if first - self.offset <= self.store.held:
            return
        self._stamps = self._stamps[first - self.offset : self.store.rows - self.offset].copy()
        self._roles = self._roles[first - self.offset : self.store.rows - self.offset].copy()
        self.offset = first
        # The next probe that needs an index makes it, of what is still here.
        self._indexes.clear()
        for ordered, _ in self._ordered.values():
            ordered.evict(first)
        if self._duplicates is not None:
            self._duplicates.evict(self.store)

    def _held(self, key: int) -> Array:
        """Return a key's codes from row ``offset`` on; rows evicted since have any code."""
        lost = np.zeros(self.store.first - self.offset, np.int64)
        return self.store.codes(key) if not len(lost) else np.concatenate((lost, self.store.codes(key)))

    def _roles_of(self, chunk: pa.RecordBatch, coded: list[Array]) -> Array:
        """Return for each row the bit set of roles whose keys are not null and agree within their classes."""
        found = np.zeros(chunk.num_rows, np.uint64)
        keys = self.store.keys
        for role, layout in enumerate(self._layouts):
            fits = np.ones(chunk.num_rows, np.bool_)
            timed = () if layout.time is None else (layout.time,)
            for key in {*layout.of_class.values(), *(k for pair in layout.same for k in pair), *timed}:
                fits &= to_numpy(chunk.column(keys[key].name).is_valid())
            for a, b in layout.same:
                fits &= coded[a] == coded[b]
                if not keys[a].exact:
                    sides: list[Any] = [pc.cast(chunk.column(keys[k].name), keys[k].type) for k in (a, b)]
                    fits &= is_true(pc.equal(*sides))
            found |= fits.astype(np.uint64) << np.uint64(role)
        return found


def _appended(array: Array, size: int, values: Array) -> Array:
    """Return the array with values from place ``size`` on, in the same memory while they fit."""
    end = size + len(values)
    if end > len(array):
        grown = np.empty(max(end, 2 * len(array)), values.dtype)
        grown[:size] = array[:size]
        array = grown
    array[size:end] = values
    return array
