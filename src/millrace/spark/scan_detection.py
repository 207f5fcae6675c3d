"""DataFrames that are nothing but a scan of Parquet files, so that tasks may read the files themselves.

Spark's physical plan, as text, tells whether a DataFrame is a scan with nothing above it but a choice of
columns, and which columns come from the files and which from the folders' names; ``inputFiles`` names the
files. What is not exactly of that form stays with Spark: anything cached, filtered or computed, other formats
and table formats with a log, such as Delta. Nothing is run, and nothing is kept from one query to the next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import StructType

from millrace.errors import InputError, UnsupportedType
from millrace.options import StorageOptions
from millrace.parquet.discovery import open_files
from millrace.parquet.partitions import Doubtful
from millrace.parquet.store import Store, locate
from millrace.parquet.tables import ParquetTable
from millrace.spark.session import SIZE_UNITS, SessionConf, explained, finds_files, is_cached, why_unreached
from millrace.spark.types import arrow_schema

# So many files may be looked into before it is known what the query reads of them.
_MOST_FILES = 20_000
# So many values of a partition column may be told apart.
_MOST_VALUES = 4096
LENIENT = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.caseSensitive": "false",
}
"""Settings under which Spark passes over files, or finds columns by something else than their names."""

# What Spark may say of a column without reading it in another way.
_HARMLESS = {"comment"}
# Between values in a list of them.
_BETWEEN = "\x01"
_TREE = re.compile(r"== Physical Plan ==\n(.*?)\n\n", re.DOTALL)
_NODE = re.compile(r"[\s*+:|-]*(?:(Scan parquet)(?: ([\w.]*))?|(ColumnarToRow)|(Project)) \((\d+)\)")
_LOCATION = re.compile(r"(InMemoryFileIndex|CatalogFileIndex) \[(.*?)(?:, \.\.\. (\d+) entries)?\]")
_SCAN_KEYS = {"Output", "Batched", "Bucketed", "Location", "ReadSchema"}
_RELATION_SIZE = re.compile(r"Relation .*parquet, Statistics\(sizeInBytes=([\d.]+ [KMGTPE]?i?B)\)")


@dataclass(frozen=True)
class _Scan:
    root: str  # the first of its roots
    roots: int
    is_listed_by_catalog: bool
    is_named: bool  # in the catalog
    partition_columns: tuple[str, ...]


def scan_of(frame: DataFrame, settings: SessionConf, storage: StorageOptions | None = None) -> ParquetTable:
    """Return the files that a DataFrame is a scan of; raises Doubtful if it may be something else."""
    if frame.isStreaming:
        raise Doubtful("it is a stream")
    if is_cached(frame):
        raise Doubtful("it is cached")
    if (why := unusual(settings, LENIENT)) is not None:
        raise Doubtful(why)
    schema = frame.schema
    types = _types(schema)
    try:
        scan = _parse(explained(frame, "FORMATTED", uncached=True), schema)
        uris = sorted(frame.inputFiles())
    except PySparkException:
        raise Doubtful("Spark cannot explain it") from None
    if len(uris) > _MOST_FILES:
        raise Doubtful(f"it has {len(uris):,} files")
    if not uris:
        raise Doubtful("it has no files")
    paths = list(map(_path, uris))
    store = _store_of(frame.sparkSession, paths, storage)
    if not store.is_remote and not finds_files(frame.sparkSession, schemeless=False):
        raise Doubtful("the Spark Connect server has other disks")
    required = [field.name for field in schema.fields if not field.nullable]
    table = open_files(scan.root, paths, types, scan.partition_columns, required, store)
    if scan.roots > 1:
        _check_no_root_twice(frame, table)
    if scan.is_listed_by_catalog:
        _check_partitions(frame, table)
    return replace(table, may_grow=scan.is_named)


def _store_of(spark: SparkSession, paths: Sequence[str], storage: StorageOptions | None) -> Store:
    """Return the store that has all of some files, if it is reached."""
    try:
        store, first = locate(paths[0], storage)
    except InputError as error:
        raise Doubtful(str(error)) from None
    if store is None:
        raise Doubtful(f"{first.split(':')[0]}: is no local disk")
    if not all(path.startswith(f"{store.root}/") for path in paths):
        raise Doubtful("its files are in several places")
    if store.is_remote:
        why = why_unreached(spark, store, first)
        if why is not None:
            raise Doubtful(why)
    return store


def _path(uri: str) -> str:
    """Return the path that Spark means by a URI: nothing in it is escaped any more."""
    return unquote(uri.removeprefix("file://"))


def unusual(settings: SessionConf, defaults: Mapping[str, str]) -> str | None:
    """Return which of some settings is not what it is in a new session, and what it is; None if none."""
    values = ((key, default, settings.get(key, default)) for key, default in defaults.items())
    return next((f"{key} is {value}" for key, default, value in values if value.lower() != default), None)


def _types(schema: StructType) -> pa.Schema:
    for field in schema.fields:
        if odd := (field.metadata or {}).keys() - _HARMLESS:
            raise Doubtful(f"column {field.name!r} has {min(odd)}")
        if not field.name.isprintable():
            raise Doubtful(f"a column is named {field.name!r}")
    if len({field.name.lower() for field in schema.fields}) < len(schema.fields):
        raise Doubtful("column names that differ only in case")
    try:
        return arrow_schema(schema)
    except UnsupportedType as error:
        raise Doubtful(str(error)) from None


def _parse(plan: str, schema: StructType) -> _Scan:
    """Return the scan that a physical plan, formatted, is."""
    tree = _TREE.search(plan)
    nodes: dict[str, str] = {}
    named = False
    for line in [] if tree is None else tree[1].splitlines():
        node = _NODE.fullmatch(line)
        kind = None if node is None else node[1] or node[3] or node[4]
        if node is None or kind is None or kind in nodes:
            raise Doubtful("it is no plain scan of Parquet files")
        nodes[kind] = node[5]
        named = named or bool(node[2])
    if "Scan parquet" not in nodes:
        raise Doubtful("it is no plain scan of Parquet files")
    said = _section(plan, nodes["Scan parquet"])
    if not said.keys() <= _SCAN_KEYS:
        raise Doubtful(f"its scan has {min(said.keys() - _SCAN_KEYS)}")
    top = said if "Project" not in nodes else _section(plan, nodes["Project"])
    output = ", ".join(rf"{re.escape(name)}#\d+L?" for name in schema.names)  # just the columns
    if not re.fullmatch(rf"\[{output}\]", top.get("Output", ""), re.IGNORECASE):
        raise Doubtful("its columns are not those of the files")
    listed = said.get("Location", "")
    location = _LOCATION.fullmatch(listed)
    if location is None:
        raise Doubtful(f"its files are listed by {listed.split(' ')[0] or 'something else'}")
    partitions = _not_in(said.get("ReadSchema", ""), schema)
    by_catalog = location[1] == "CatalogFileIndex"
    return _Scan(location[2], 1 + int(location[3] or 0), by_catalog, named, partitions)


def _section(plan: str, number: str) -> dict[str, str]:
    start = re.search(rf"^\({number}\) .*$", plan, re.MULTILINE)
    said: dict[str, str] = {}
    for line in [] if start is None else plan[start.end() + 1 :].splitlines():
        if not line:
            break
        key, colon, value = line.partition(": ")
        key = re.sub(r" \[\d+\]$", "", key)
        if not colon or key in said:
            raise Doubtful("its plan is of another form")
        said[key] = value
    return said


def _not_in(read: str, schema: StructType) -> tuple[str, ...]:
    """Return the columns that are not read from files: those that are not in a scan's schema."""
    left = {field.name: f"{field.name}:{field.dataType.simpleString()}".lower() for field in schema.fields}
    text = read.lower()
    if not text.startswith("struct<") or not text.endswith(">"):
        raise Doubtful("its plan is of another form")
    text = text[len("struct<") : -1]
    while text:
        hit = next((name for name, item in left.items() if (text + ",").startswith(item + ",")), None)
        if hit is None:
            raise Doubtful("it reads columns that it does not give")
        text = text[len(left.pop(hit)) + 1 :]
    return tuple(left)


def _check_no_root_twice(frame: DataFrame, table: ParquetTable) -> None:
    """Refuse files that are read twice because their path was given twice, which ``inputFiles`` hides.

    The size that Spark estimates is that of all files, each as often as it is read.
    """
    sizes = [footer.bytes for footer in table.footers]
    said = _RELATION_SIZE.search(explained(frame, "COST"))
    total = sum(sizes)
    if said is None or said[1] != _size_text(total) or said[1] == _size_text(total + min(sizes)):
        raise Doubtful("a path may have been given twice")


def _size_text(size: int) -> str:
    """Return a size as Spark writes it."""
    power = max((n for n in range(1, len(SIZE_UNITS)) if size >= 2 << (10 * n)), default=0)
    return f"{size / (1 << (10 * power)):.1f} {SIZE_UNITS[power]}"


def _check_partitions(frame: DataFrame, table: ParquetTable) -> None:
    """Refuse a catalog's table whose partitions are in folders that are named otherwise.

    Asking Spark for the files of some values at a time tells which file has which value: every value has a
    number, and each question is for those with a certain bit; what Spark knows by no number is null or unlike
    its folder. Nothing cheaper would see two partitions that have changed places.
    """
    names = [f"c{number}" for number in range(len(table.schema))]
    renamed = frame.toDF(*names)
    for place, column in enumerate(table.partition_columns):
        texts = [_text(file.partition[place]) for file in table.files]
        values = [text for text in dict.fromkeys(texts) if text is not None]
        if len(values) > _MOST_VALUES or any(_BETWEEN in text for text in values):
            raise Doubtful(f"partition column {column!r} has {len(values):,} values, some of them odd")
        numbers: dict[str | None, int] = {None: 0}
        numbers |= {value: number for number, value in enumerate(values, 1)}
        listed = sf.split(sf.lit(_BETWEEN.join(values)), _BETWEEN)
        own = sf.col(names[table.schema.get_field_index(column)]).cast("string")
        number = sf.array_position(listed, own)
        questions: list[tuple[Column, set[str | None]]] = [
            (number.bitwiseAND(1 << bit) != 0, {text for text in numbers if numbers[text] >> bit & 1})
            for bit in range(len(values).bit_length())
        ]
        questions += [(own.isNull(), {None})] if None in texts else []
        for condition, expected in questions:
            paths = set(map(_path, renamed.where(condition).inputFiles()))
            files = zip(table.files, texts, strict=True)
            if paths != {file.path for file, text in files if text in expected}:
                raise Doubtful(f"partitions of column {column!r} are in folders named otherwise")


def _text(value: Any) -> str | None:
    """Return a partition's value as Spark casts it to a string."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, date):
        return value.isoformat()
    raise Doubtful(f"a partition has the value {value}")
