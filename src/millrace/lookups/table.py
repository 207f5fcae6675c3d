"""A lookup table: rows that are got by asking for the values of some columns.

Each set of bind columns has a source that answers it, an *index* (Raman, Deshpande & Hellerstein 2003,
section 2.1.3); a table may also have *scans*, which return all rows. This is what users declare: nothing is
asked before a query runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyarrow import types as t

from millrace import limits
from millrace.engine.tuples.keys import is_key_type
from millrace.errors import ExecutionError, InputError, OptionError, near
from millrace.limits.registration import Registration
from millrace.limits.secrets import Secrets
from millrace.lookups.source import Naming, Source, name_ends

OnError = Literal["fail", "skip", "null"]
ON_ERROR: tuple[str, ...] = ("fail", "skip", "null")


@dataclass(frozen=True)
class IndexSpec:
    """An index: bind columns of a lookup table, and the source that is asked with values of them.

    Attributes:
        columns: The bind columns, and behind them the ends of an interval.
        schema: All columns of the table, in the types of its rows, and the ends of an interval behind them: a
            row has those that it was asked for by.
        on_error: What a key comes to that cannot be looked up: ``"fail"`` fails the query, ``"skip"`` takes
            it to have no rows, ``"null"`` to have one row whose other columns are null.
        cache: Where rows outlive the job: a folder, or a ``.sqlite`` file; None for nowhere.
        ttl: Seconds for which they do; None for ever.
        between: The column of which an interval is asked for; empty for none.
    """

    name: str
    columns: tuple[str, ...]
    schema: pa.Schema
    source: Source
    on_error: OnError = "fail"
    cache: Path | None = None
    ttl: float | None = None
    between: str = ""

    @property
    def keys(self) -> pa.Schema:
        """What is asked for, with its types."""
        return pa.schema([self.schema.field(column) for column in self.columns])

    @property
    def bind(self) -> tuple[str, ...]:
        """The bind columns alone."""
        return self.columns[:-2] if self.between else self.columns

    @property
    def ends(self) -> list[pa.Field]:
        """The ends of its intervals, if it has any."""
        return [self.schema.field(end) for end in name_ends(self.between)] if self.between else []

    @property
    def answered(self) -> pa.Schema:
        """The columns that the source returns."""
        return pa.schema([field for field in self.schema if field not in self.ends])

    def describe(self, prefix: str = "") -> str:
        """Return what it is asked for, names behind a prefix: ``host, an interval of t``."""
        ranged = [f"an interval of {prefix}{self.between}"] if self.between else []
        return ", ".join([*(prefix + column for column in self.bind), *ranged])

    def fingerprint(self, secrets: Secrets) -> str:
        """Return what rows in a cache are known by: they are those of this source, asked for these columns.

        Every secret of the request counts, wherever it stands: a service may answer each of its clients in
        another way. So a new password makes a new cache.
        """
        parts = [self.source.identity, *map(str, (self.columns, self.schema.names, self.schema.types))]
        parts += [secrets.values()[name] for name in self.source.secrets]
        return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def registration(self, secrets: Secrets, *, stream: bool = False) -> Registration:
        """Return what the planning process registers for this index; answers to a stream outlive its jobs."""
        needed = {name: value for name, value in secrets.values().items() if name in self.source.secrets}
        fingerprint = self.fingerprint(secrets) if stream or self.cache is not None else ""
        terms = self.source.terms
        return terms.registration(self.name, Secrets(needed), fingerprint, self.cache, self.ttl)


@dataclass(frozen=True, eq=False)
class LookupTable:
    """What :func:`millrace.lookup` returns, to be given among a query's ``tables``.

    Attributes:
        name: What plans, reports and errors call it.
        schema: Its columns, in the Arrow types of Spark's.
        indexes: One for each set of bind columns.
        frame: A scan that Spark or the tasks read: a DataFrame or a path of Parquet data; None without.
        sources: Scans by sources.
    """

    name: str
    schema: pa.Schema
    indexes: tuple[IndexSpec, ...]
    frame: Any = None
    sources: tuple[Source, ...] = ()

    @property
    def bind(self) -> tuple[tuple[str, ...], ...]:
        """The sets of columns that need values, as the schema spells them, and ends of intervals."""
        return tuple(index.columns for index in self.indexes)

    @property
    def is_set(self) -> bool:
        """Whether rows may come from several access methods, so that equal rows are one."""
        return len(self.indexes) > 1 or self.is_scanned

    @property
    def is_scanned(self) -> bool:
        """Whether it has a scan."""
        return self.frame is not None or bool(self.sources)

    def check(self) -> None:
        """Find what is wrong with the sources before anything runs, in the process that plans the query.

        Raises:
            MillraceError: A source cannot work as it is declared, or a secret is missing.
        """
        limits.check_libraries(f"lookup table {self.name!r}")
        asked = [(index.columns, index.source) for index in self.indexes]
        for columns, source in [*asked, *(((), source) for source in self.sources)]:
            secrets = Secrets.of_environment(source.secrets, f"lookup table {self.name!r}")
            source.check(self.schema, columns, secrets)

    def needs(self, alias: str) -> str:
        """Return the columns that need values, by a relation's name: ``(p.x, p.y) or (p.z)``."""
        return " or ".join(f"({index.describe(f'{alias}.')})" for index in self.indexes)


def table_of(
    name: object,
    schema: pa.Schema,
    bind: object,
    via: object,
    scan: object = None,
    on_error: str = "fail",
    cache: object = None,
    ttl: object = None,
    between: object = None,
) -> LookupTable:
    """Check a declaration, as :func:`millrace.lookup` explains it; the schema has Arrow types of Spark's.

    Raises:
        InputError: A column, source or scan cannot be used.
        OptionError: A setting is out of range.
    """
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"a lookup table is named {name!r}: expected a text, such as 'prices'")
    where = f"lookup table {name!r}"
    names = _columns(where, schema)
    is_bound = between is None or not isinstance(bind, list | tuple) or bool(bind)
    sets = _bind_sets(where, bind, schema, names) if is_bound else ((),)
    frame, sources = _scans(where, scan)
    kept = _on_error(where, on_error), _cache(where, cache), _ttl(where, ttl, cache)
    ranged = "" if between is None else _ranged(where, between, schema, names)
    ends = [pa.field(end, schema.field(ranged).type) for end in name_ends(ranged)] if ranged else []
    indexes = []
    for columns, source in zip(sets, _sources(where, via, sets), strict=True):
        asked = (*columns, *(end.name for end in ends))
        if isinstance(source, Naming):
            source.check_names(asked)
        called = name if len(sets) == 1 else f"{name}({', '.join(columns)})"
        indexes.append(IndexSpec(called, asked, pa.schema([*schema, *ends]), source, *kept, ranged))
    table = LookupTable(name, schema, tuple(indexes), frame, sources)
    if ranged:
        _check_ranged(where, table)
    if table.is_set:
        _check_set(where, schema, table)
    return table


def _columns(where: str, schema: pa.Schema) -> dict[str, str]:
    """Return the columns by lower-case name: SQL compares names without case."""
    if not len(schema):
        raise InputError(f"{where} has no column: expected its schema, such as 'sku string, price double'")
    names: dict[str, str] = {}
    for column in schema.names:
        if column.lower() in names:
            raise InputError(
                f"{where} has two columns {names[column.lower()]!r} and {column!r}, which SQL does not tell "
                "apart; give them different names"
            )
        names[column.lower()] = column
    return names


def _bind_sets(
    where: str, bind: object, schema: pa.Schema, names: dict[str, str]
) -> tuple[tuple[str, ...], ...]:
    if isinstance(bind, str) or not isinstance(bind, Sequence):
        example = repr([bind]) if isinstance(bind, str) else "['sku']"
        raise InputError(f"{where}: bind is {bind!r}: expected a list of columns, such as {example}")
    if not bind:
        raise InputError(
            f"{where}: bind is empty: expected the columns whose values have to be known to ask for rows, "
            f"one or more of {', '.join(map(repr, schema.names))}"
        )
    nested = [not isinstance(each, str) for each in bind]
    if any(nested) and not all(nested):
        raise InputError(
            f"{where}: bind is {bind!r}: expected either columns, such as ['x', 'y'], or lists of columns, "
            "such as [['x'], ['y']]"
        )
    found: list[tuple[str, ...]] = []
    for each in bind if all(nested) else [bind]:
        if not isinstance(each, Sequence) or not all(isinstance(c, str) for c in each):
            raise InputError(f"{where}: bind has {each!r}: expected a list of columns, such as ['sku']")
        columns = tuple(_bind_column(where, column, schema, names) for column in each)
        if not columns:
            raise InputError(f"{where}: bind has an empty list; a source that needs no value is a scan")
        if len(set(columns)) != len(columns):
            raise InputError(f"{where}: bind names a column twice: {list(each)!r}")
        if set(columns) in [set(other) for other in found]:
            raise InputError(
                f"{where}: bind has ({', '.join(columns)}) twice: one index for each set of columns"
            )
        found.append(columns)
    return tuple(found)


def _bind_column(where: str, column: str, schema: pa.Schema, names: dict[str, str]) -> str:
    known = names.get(column.lower())
    if known is None:
        raise InputError(f"{where} has no column {column!r} to bind: {near(column, schema.names)}")
    kind = schema.field(known).type
    reason = _no_key(kind)
    if reason is not None:
        raise InputError(
            f"{where}: column {known!r} of type {kind} cannot be a bind column, {reason}; expected an "
            "integer, string, boolean, decimal, date or timestamp"
        )
    return known


def _no_key(kind: pa.DataType) -> str | None:
    """Return why values of a type cannot be asked for, None if they can."""
    if t.is_floating(kind):
        return "for equal floating-point numbers need not be written alike, so that rows would be missed"
    if t.is_nested(kind):
        return "for a nested value is no single key"
    if t.is_binary(kind):
        return "for bytes have no text form that every source agrees on"
    return None if is_key_type(kind) else "for keys of this type do not exist"


def _ranged(where: str, between: object, schema: pa.Schema, names: dict[str, str]) -> str:
    """Return the column of which intervals are asked for."""
    if not isinstance(between, list | tuple) or len(between) != 1 or not isinstance(between[0], str):
        raise InputError(f"{where}: between is {between!r}: expected a list of one column, such as ['t']")
    column, where = names.get(between[0].lower()), f"{where}: between has {between[0]!r}"
    if column is None:
        raise InputError(f"{where}, which is no column: {near(between[0], schema.names)}")
    kind = schema.field(column).type
    if not (t.is_signed_integer(kind) or t.is_date(kind) or t.is_timestamp(kind)):
        raise InputError(
            f"{where} of type {kind}, which sources order in different ways; expected an integer, date or "
            "timestamp"
        )
    if taken := [end for end in name_ends(column) if end.lower() in names]:
        raise InputError(f"{where}, but {taken[0]!r}, an end of its intervals, is a column too; rename that")
    return column


def _check_ranged(where: str, table: LookupTable) -> None:
    """Find what does not go with intervals."""
    index = table.indexes[0]
    where, terms = f"{where}: between has {index.between!r}", index.source.terms
    if index.between in index.bind:
        raise InputError(f"{where}, and so has bind; expected one: values or intervals are sent")
    if table.is_set:
        raise InputError(
            f"{where} beside a scan or several lists of bind columns; expected one way to get the rows: "
            "declare another table for the other"
        )
    if index.on_error == "null":
        raise OptionError(f"{where}; a row of nulls lies in no interval: expected on_error 'fail' or 'skip'")
    if index.source.kind != "database" and terms.batch > 1:
        raise OptionError(
            f"{where}, and the source batch={terms.batch}: it could return a row that intervals share "
            "more than once; expected batch=1"
        )


def _sources(where: str, via: object, sets: tuple[tuple[str, ...], ...]) -> tuple[Source, ...]:
    given: list[Any] = list(via) if isinstance(via, list | tuple) else [via] * len(sets)
    for each in given:
        if not isinstance(each, Source):
            raise InputError(
                f"{where}: via is given as {type(each).__name__}: expected millrace.http(…), "
                "millrace.database(…) or millrace.function(…)"
            )
    if len(given) != len(sets):
        raise InputError(
            f"{where}: via has {len(given)} sources for {len(sets)} sets of bind columns: expected one for "
            "each, or a single one for all"
        )
    return tuple(given)


def _scans(where: str, scan: object) -> tuple[Any, tuple[Source, ...]]:
    """Return the scan that Spark or the tasks read, and those by sources."""
    given: list[Any] = [] if scan is None else list(scan) if isinstance(scan, list | tuple) else [scan]
    frames: list[Any] = []
    sources: list[Source] = []
    for each in given:
        if isinstance(each, str | Path):
            frames.append(str(each))
        elif hasattr(each, "mapInArrow") and hasattr(each, "schema"):
            frames.append(each)
        elif isinstance(each, Source):
            if not each.can_scan:
                raise InputError(
                    f"{where}: scan is {each.describe()}, which only answers for keys; expected one that can "
                    "return all rows, a path of Parquet data, or a DataFrame"
                )
            sources.append(each)
        else:
            raise InputError(
                f"{where}: scan is given as {type(each).__name__}: expected a path of Parquet data, a "
                "DataFrame, or a source that can return all rows"
            )
    if len(frames) > 1:
        raise InputError(
            f"{where} has {len(frames)} scans by path or DataFrame, each of which returns every row: give one"
        )
    return (frames[0] if frames else None), tuple(sources)


def _on_error(where: str, value: str) -> OnError:
    if value not in ON_ERROR:
        raise OptionError(f"{where}: on_error is {value!r}: {near(str(value), ON_ERROR)}")
    return value  # type: ignore[return-value]


def _cache(where: str, value: object) -> Path | None:
    if value is not None and (not isinstance(value, str | Path) or not str(value)):
        raise OptionError(f"{where}: cache is {value!r}: expected the path of a file or folder")
    return None if value is None else Path(str(value)).expanduser().absolute()


def _ttl(where: str, value: object, cache: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise OptionError(f"{where}: ttl is {value!r}: expected seconds above 0, such as 3600")
    if cache is None:
        raise OptionError(
            f"{where}: ttl is given without cache: expected the file or folder too in which answers are kept"
        )
    return float(value)


def _check_set(where: str, schema: pa.Schema, table: LookupTable) -> None:
    for field in schema:
        if not is_key_type(field.type):
            why = "a scan beside its index" if table.is_scanned else "several indexes"
            raise InputError(
                f"{where} has {why}, so that equal rows from both have to be found, but column "
                f"{field.name!r} of type {field.type} cannot be compared; expected numbers, strings, binary "
                "values, booleans, dates and timestamps; leave the column out, or declare a single access "
                "method"
            )


@dataclass(frozen=True)
class Unreadable:
    """What stands for a lookup table while Spark analyses a query: it has no rows that Spark could read.

    Were it a DataFrame without rows, a query that read it by mistake would give wrong rows.
    """

    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raise ExecutionError, always."""
        raise ExecutionError(
            f"lookup table {self.name!r} was read by Spark itself, which has no rows of it: give it a scan, "
            "or report this query as an error of Millrace"
        )
