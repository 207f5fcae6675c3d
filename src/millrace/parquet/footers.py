"""Footers of Parquet files: read once, kept while the file does not change."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.engine.arrays import array_of, fixed_width
from millrace.errors import InputError, first_line
from millrace.parquet.partitions import Doubtful
from millrace.parquet.store import DISKS, State, Store, StoreError
from millrace.parquet.types import UTC_MICROS, NotSparks, spark_type

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_SPARK_NAMES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": UTC_MICROS,
    "timestamp_ntz": pa.timestamp("us"),
}
# Annotations of bytes that Spark reads as strings and pyarrow does not.
_TEXTS = ("ENUM", "JSON")
# Types whose Parquet form looks like another type, and annotations that change how Spark compares.
_SPARK_ONLY = ("interval", "variant", '"udt"', "__COLLATIONS", "time(", "geometry", "geography")

_LEAST_BYTES = 12  # of a value whose width varies, a guess

_UNCLEAR = (pa.ArrowException, TypeError, ValueError, OverflowError)

Bounds = tuple[Any, Any, int | None]
"""Least value, greatest value (both None when unknown) and number of nulls (None when unknown)."""


@dataclass(frozen=True)
class Footer:
    """What one file's footer says.

    Attributes:
        schema: The columns with Spark's types; empty when ``unsupported``.
        unsupported: Why Spark has to read this file itself, or None.
        leaves: For each column, the places of its leaf columns in the file.
        bytes: The file's size.
    """

    path: str
    metadata: pq.FileMetaData
    schema: pa.Schema
    unsupported: str | None
    leaves: dict[str, list[int]]
    bytes: int
    _bounds: dict[str, tuple[Bounds, ...]] = field(default_factory=dict, compare=False)
    _bytes: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    @cached_property
    def spelled(self) -> dict[str, str]:
        """The columns' names as the file spells them, by lower-case name."""
        return {name.lower(): name for name in self.schema.names}

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The number of rows of each row group."""
        groups = range(self.metadata.num_row_groups)
        return tuple(int(self.metadata.row_group(group).num_rows) for group in groups)

    @property
    def by_spark(self) -> bool:
        """Whether Spark wrote the file."""
        return _SPARK_VERSION in (self.metadata.metadata or {})

    def decoded_bytes(self, column: str) -> tuple[int, ...]:
        """Return for each row group an estimate of the column's size in memory: exact for fixed widths."""
        if column not in self._bytes:
            width = fixed_width(self.schema.field(column).type)
            if width is not None:
                self._bytes[column] = tuple(rows * width for rows in self.rows)
            else:
                # A dictionary makes repeated values small in the file but not in memory.
                sizes = ((self._encoded_bytes(column, group), rows) for group, rows in enumerate(self.rows))
                self._bytes[column] = tuple(max(encoded, rows * _LEAST_BYTES) for encoded, rows in sizes)
        return self._bytes[column]

    def _encoded_bytes(self, column: str, group: int) -> int:
        """Return the column's size in the row group, encoded but not compressed."""
        rows = self.metadata.row_group(group)
        return sum(int(rows.column(leaf).total_uncompressed_size) for leaf in self.leaves[column])

    def bounds(self, column: str) -> tuple[Bounds, ...]:
        """Return for each row group the column's bounds as its statistics give them.

        Floats have none: a file's statistics leave NaN out, which Spark orders above everything.
        """
        if column not in self._bounds:
            kind = self.schema.field(column).type
            found = [self._statistics(column, kind, group) for group in range(self.metadata.num_row_groups)]
            known = [group for group, (low, _, _) in enumerate(found) if low is not None]
            bounds: list[Bounds] = [(None, None, nulls) for _, _, nulls in found]
            try:  # all at once, for a table may have ten thousands of row groups
                lows, highs = (array_of([found[group][end] for group in known], kind) for end in (0, 1))
                for group, low, high in zip(known, lows, highs, strict=True):
                    bounds[group] = (low, high, found[group][2])
            except _UNCLEAR:
                pass  # values that are not of the type bound nothing
            self._bounds[column] = tuple(bounds)
        return self._bounds[column]

    def _statistics(self, column: str, kind: pa.DataType, group: int) -> tuple[Any, Any, int | None]:
        """Return the least value, the greatest and the number of nulls, each None where it is not known."""
        leaves = self.leaves[column]
        if len(leaves) != 1 or pa.types.is_nested(kind):
            return (None, None, None)
        statistics = self.metadata.row_group(group).column(leaves[0]).statistics
        if statistics is None:
            return (None, None, None)
        nulls = int(statistics.null_count) if statistics.has_null_count else None
        if pa.types.is_floating(kind) or pa.types.is_boolean(kind) or not statistics.has_min_max:
            return (None, None, nulls)
        try:
            return (statistics.min, statistics.max, nulls)
        except _UNCLEAR:
            return (None, None, nulls)


_Key = tuple[Store, str, State]


class _Kept:
    """Footers by path and state of the file, the latest ones, up to about so many bytes of memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._footers: OrderedDict[_Key, Footer] = OrderedDict()
        self._lock = Lock()

    def get(self, key: _Key) -> Footer | None:
        with self._lock:
            found = self._footers.get(key)
            if found is not None:
                self._footers.move_to_end(key)
            return found

    def put(self, key: _Key, footer: Footer) -> None:
        with self._lock:
            if key not in self._footers:
                self._held += _memory(footer)
            self._footers[key] = footer
            while self._held > self._most and len(self._footers) > 1:
                self._held -= _memory(self._footers.popitem(last=False)[1])


def _memory(footer: Footer) -> int:
    """Return about how many bytes a footer takes: decoded, it is some times what it is in the file."""
    return 4096 + 8 * int(footer.metadata.serialized_size)


_KEPT = _Kept(512 * 1024 * 1024)
# Reading footers is waiting, where files are far away; where they are near, more threads do not help.
_THREADS = 8
_AT_ONCE = 64


def footers_of(
    paths: Sequence[str], store: Store = DISKS, states: Sequence[State | None] = ()
) -> tuple[Footer, ...]:
    """Return the footers of files, in their order; several are read at once.

    ``states`` are what a listing says of each file; None, or none at all, asks the store.

    Raises:
        InputError: A file is missing, unreadable, empty or no Parquet file.
        Doubtful: A footer is encrypted.
    """
    asked = list(zip(paths, states or [None] * len(paths), strict=True))
    if len(paths) < (2 if store.is_remote else _THREADS):
        return tuple(footer_of(path, store, state) for path, state in asked)
    from concurrent.futures import ThreadPoolExecutor  # here, for tasks ask for one footer at a time

    size = min(_AT_ONCE, -(-len(paths) // _THREADS))
    pieces = [asked[start : start + size] for start in range(0, len(paths), size)]
    with ThreadPoolExecutor(_THREADS, "footers") as pool:
        found = pool.map(lambda piece: [footer_of(path, store, state) for path, state in piece], pieces)
        return tuple(footer for piece in found for footer in piece)


def footer_of(path: str, store: Store = DISKS, state: State | None = None) -> Footer:
    """Return the footer of a file, from memory when the file is as it was; see :func:`footers_of`."""
    state = state or store.state(path)
    key = (store, path, state)
    footer = _KEPT.get(key)
    if footer is None:
        if state.size == 0:
            raise InputError(
                f"{path} is empty (0 bytes): expected a Parquet file; write it again or remove it"
            )
        footer = _read(path, store, state.size)
        _KEPT.put(key, footer)
    return footer


def _read(path: str, store: Store, size: int) -> Footer:
    try:
        metadata = pq.read_metadata(store.source(path))
        file_schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        why = store.explain(path, error)
        if why is not None:
            raise StoreError(why) from None
        end = store.source(path).read_at(4, max(0, size - 4))
        if end == b"PARE":  # so files end whose footer is encrypted
            raise Doubtful(f"{Path(path).name} is encrypted") from None
        detail = first_line(error).rstrip(".")
        raise InputError(
            f"{path} is not a readable Parquet file: {detail}. Expected Parquet; "
            "if the file is damaged, write it again; if it is something else, move it out of the way"
        ) from None
    leaves: dict[str, list[int]] = {}
    for leaf in range(metadata.num_columns):
        top = _top_name(metadata.schema.column(leaf).path, file_schema)
        leaves.setdefault(top, []).append(leaf)
    unsupported = None
    try:
        schema = _spark_schema(metadata, file_schema)
    except NotSparks as reason:
        schema, unsupported = pa.schema([]), f"{reason} in {Path(path).name}"
    return Footer(path, metadata, schema, unsupported, leaves, size)


def _top_name(path: str, schema: pa.Schema) -> str:
    """Return the column that a leaf belongs to; names may contain dots themselves."""
    if path in schema.names:
        return path
    fitting = [name for name in schema.names if path.startswith(name + ".")]
    return max(fitting, key=len, default=path)


def _spark_schema(metadata: pq.FileMetaData, file: pa.Schema) -> pa.Schema:
    """Return the columns with Spark's types; raises NotSparks where only Spark knows what it reads."""
    if len({name.lower() for name in file.names}) != len(file.names):
        raise NotSparks("column names that differ only in case")
    extra = metadata.metadata or {}
    leaves = [metadata.schema.column(leaf) for leaf in range(metadata.num_columns)]
    text = next((leaf for leaf in leaves if leaf.converted_type in _TEXTS), None)
    if text is not None:
        raise NotSparks(f"column {text.path!r} has type {text.converted_type}")
    instants = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    if instants and _SPARK_VERSION not in extra:
        raise NotSparks("INT96 timestamps, whose calendar only Spark's settings know,")
    fields = []
    for column in file:
        try:
            kind = UTC_MICROS if column.name in instants else spark_type(column.type)
        except NotSparks as error:
            raise NotSparks(f"column {column.name!r} has {error}") from None
        fields.append(pa.field(column.name, kind))
    dated = any(pa.types.is_temporal(f.type) or pa.types.is_nested(f.type) for f in fields)
    if dated and (any(key in extra for key in _LEGACY) or extra.get(_SPARK_VERSION, b"9").startswith(b"2.")):
        raise NotSparks("dates in Spark's old calendar")
    schema = pa.schema(fields)
    if _SPARK_SCHEMA in extra and (difference := _spark_difference(extra[_SPARK_SCHEMA], schema)):
        raise NotSparks(difference)
    return schema


def _spark_difference(text: bytes, schema: pa.Schema) -> str | None:
    """Return how the schema that Spark wrote differs from the one found, or None."""
    try:
        columns = json.loads(text)["fields"]
        kinds = {column["name"]: column["type"] for column in columns}
    except (ValueError, KeyError, TypeError):
        return "an unreadable Spark schema"
    decoded = text.decode(errors="replace")
    for word in _SPARK_ONLY:
        if word in decoded:
            return f"Spark's own type {word.strip('_(').strip(chr(34)).lower()}"
    for column in schema:
        kind = kinds.get(column.name)
        if not isinstance(kind, str):
            continue
        expected = _SPARK_NAMES.get(kind)
        if kind.startswith("decimal(") and pa.types.is_decimal(column.type):
            expected = pa.decimal128(*map(int, kind[8:-1].split(",")))
        if expected != column.type:
            return f"column {column.name!r} is {kind} to Spark and {column.type} in the file"
    return None
