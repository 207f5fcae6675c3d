"""The tables a query names: where they come from, their columns, and their DataFrames."""

# ruff: noqa: S608  # SQL is what this module writes

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as sf, types as t
from sqlglot import exp

from millrace.errors import InputError, first_line, near
from millrace.lookups.table import LookupTable, Unreadable
from millrace.options import StorageOptions
from millrace.parquet.partitions import Doubtful
from millrace.parquet.tables import ParquetTable
from millrace.spark.block import ParquetInput
from millrace.spark.path_tables import PathTable, files_at, open_path
from millrace.spark.scan_detection import scan_of
from millrace.spark.session import is_cached, is_connect
from millrace.spark.types import spark_schema
from millrace.sql.expr.types import Field, field_of, is_plain
from millrace.sql.plan import Plan
from millrace.sql.session.asking import Frames, Settings, estimate
from millrace.sql.syntax.edits import placeholders, plain_quote, quote, substitute


@dataclass(frozen=True, eq=False)
class Lookup:
    """A lookup table of the query.

    ``scan`` has all rows with exactly its columns, as they come; None without one that Spark can read.
    """

    table: LookupTable  # as declared
    scan: DataFrame | None = None
    parquet: ParquetTable | None = None  # the same as files, when the tasks can read them directly

    @property
    def needs_keys(self) -> bool:
        """Whether Spark cannot read it."""
        return self.scan is None


def lookup_of(
    frames: Frames, table: LookupTable, storage: StorageOptions | None = None
) -> tuple[Lookup, DataFrame]:
    """Return a lookup table, and the DataFrame that stands for it in the query's text.

    That is its scan, equal rows once, where Spark can read one; else one that fails when it is read.
    """
    table.check()
    if table.frame is None:
        row = frames.spark.range(0, 1, 1, 1)  # opaque to Spark's optimizer, which may not take it for empty
        return Lookup(table), row.mapInArrow(Unreadable(table.name), spark_schema(table.schema))
    frame, files = table.frame, None
    if isinstance(frame, str):
        at = open_path(frames.spark, frame, storage=storage)
        frame, files = at.frame, at.files
    scan = _with_columns(table, frame)
    direct = files if files is not None and files.schema.equals(table.schema) else None
    return Lookup(table, scan, direct), scan.distinct()


def _with_columns(table: LookupTable, frame: DataFrame) -> DataFrame:
    """Return a scan's rows with the table's columns, in its order and types."""
    where = f"the scan of lookup table {table.name!r}"
    names = {name.lower(): name for name in frame.columns}
    columns = []
    for field in spark_schema(table.schema).fields:
        name = names.get(field.name.lower())
        if name is None:
            raise InputError(f"{where} has no column {field.name!r}: {near(field.name, frame.columns)}")
        column = sf.col(plain_quote(name))
        if frame.schema[name].dataType != field.dataType:
            column = column.cast(field.dataType)
        columns.append(column.alias(field.name))
    try:
        scan = frame.select(*columns)
        scan.schema  # noqa: B018  # Spark Connect analyses only now
    except PySparkException as error:
        why = f"{where} has columns of other types, which Spark cannot cast ({first_line(error)})"
        raise InputError(why) from None
    return scan


Tables = Mapping[str, "str | Path | PathTable | DataFrame | LookupTable"]


@dataclass(frozen=True, eq=False)
class Table:
    """A base table of the query.

    Attributes:
        files: Its files, where it was given by path and the tasks can read them directly.
        placeholder: What stands for it in templates, None for tables of the session's catalog.
        lookup: For a lookup table, how it is asked. Unless it has a scan, ``frame`` is only for analysis.
        settings: Those of the query, where ``frame`` may be a scan of files; None where it is not to be one.
    """

    name: str  # as the reports show it
    read: Callable[[], DataFrame]  # returns all its rows, for what Spark runs itself
    files: ParquetTable | None = None
    placeholder: str | None = None
    lookup: Lookup | None = None
    settings: Settings | None = None
    fixed: bool = False  # whether ``frame`` would be the same one in another query of the same text
    left: str = ""  # why tasks do not read the files, where that is known

    @cached_property
    def frame(self) -> DataFrame:
        """All its rows; of files it is made only if something asks for it."""
        return self.read()

    @property
    def parquet(self) -> ParquetTable | None:
        """The files, when the tasks can read them directly."""
        return self.files or self._scan[0]

    @property
    def why(self) -> str:
        """Why the tasks cannot read its files, if it has any."""
        return "" if self.files else self._scan[1]

    @cached_property
    def _scan(self) -> tuple[ParquetTable | None, str]:
        if self.settings is None:
            return None, self.left
        try:
            return scan_of(self.frame, self.settings.conf, self.settings.storage), ""
        except Doubtful as doubt:
            return None, str(doubt)

    @property
    def needs_keys(self) -> bool:
        return self.lookup is not None and self.lookup.needs_keys

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        # Spark gets the columns of files from here, but for those of folders, which it looks for itself.
        is_given = self.files is not None and not self.files.partition_columns
        schema = spark_schema(self.files.schema) if self.files and is_given else self.frame.schema
        return tuple(map(field_of, schema.fields))

    @cached_property
    def stand_in(self) -> str | None:
        """A query text with these columns and no rows, in which Spark can analyse names and types.

        It costs Spark much less than the table itself; None where a type cannot be written down.
        """
        if self.placeholder is None or not all(isinstance(f.type, t.AtomicType) for f in self.fields):
            return None
        items = [f"CAST(NULL AS {f.type.simpleString()}) AS {quote(f.name)}" for f in self.fields]
        return f"(SELECT {', '.join(items)} WHERE false)"

    @cached_property
    def rows(self) -> int | None:
        """How many rows it has, None where nothing tells: of a DataFrame Spark's estimate."""
        return estimate(self.frame)[0] if self.parquet is None else self.parquet.rows

    @cached_property
    def is_streaming(self) -> bool:
        return self.files is None and bool(self.frame.isStreaming)


def check_tables(tables: object) -> None:
    """Raise InputError for what is no mapping of names."""
    if tables is None:
        return
    if not isinstance(tables, Mapping):
        raise InputError(
            f"tables are given as {type(tables).__name__}: expected names with what each stands for, such as "
            "{'orders': 'orders.parquet'}"
        )
    for name in tables:
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"a table is named {name!r}: expected a name, such as 'orders'")
    lower = [name.lower() for name in tables]
    twice = next((name for name in tables if lower.count(name.lower()) > 1), None)
    if twice is not None:
        raise InputError(f"two tables are named {twice!r}, which SQL does not tell apart by case")


def dotted(node: exp.Table) -> str:
    """Return a table's name in the query, with what stands before it."""
    return ".".join(part.name for part in node.parts)


class Catalog:
    """Finds the tables: the caller's first, then the session's.

    ``notes`` say how tables are read where that is not plain, one sentence for each that was looked up.
    """

    def __init__(self, frames: Frames, tables: Tables, settings: Settings) -> None:
        self.frames = frames
        self.notes: list[str] = []
        self.settings = settings
        self._tables = {name.lower(): (name, where) for name, where in tables.items()}
        self._known: dict[str, Table] = {}
        self._opens_views = True
        self.unworthy_seconds = 0.0  # the most that a block saves that was left to Spark for Python's start

    def leave_views(self) -> None:
        """Let Spark read all views and tables of the session from now on."""
        self._opens_views = False
        self._known = {key: table for key, table in self._known.items() if table.placeholder is not None}

    def may_mix(self, plan: Plan) -> bool:
        """Tell whether a plan may see two states of the session's views.

        Spark Connect looks the names in a text up again for each action; files that tasks read stay the same.
        """
        if not self._opens_views or not is_connect(self.frames.spark):
            return False
        names = [re.escape(table.name.rpartition(".")[2]) for table in self.used if table.placeholder is None]
        if not names or not any(isinstance(rows, ParquetInput) for rows in plan.inputs()):
            return False
        word = re.compile(rf"(?<!\w)({'|'.join(names)})(?!\w)", re.IGNORECASE)
        return any(map(word.search, plan.texts()))

    def state_of(self, table: Table, *, now: bool) -> Hashable | None:
        """Return what differs as soon as a table's rows may, as they were planned with or are now.

        None where only Spark can tell whether they are the same. Files named by path are listed again.
        """
        if (files := table.files) is not None:
            if now:
                files = files_at(self.frames.spark, files.path, self.settings.conf, self.settings.storage)
            return None if files.unsupported else files.states
        if not table.fixed or table.lookup is not None or table.is_streaming:
            return None
        if (files := table.parquet) is None:
            return "a DataFrame" if table.placeholder else None
        if files.may_grow:
            return None
        return files.current_states() if now else files.states, is_cached(table.frame)

    def analyse(self, template: str, *, alike: bool = False) -> DataFrame:
        """Let Spark analyse a template; its errors come out unchanged.

        Queries without rows stand for the caller's tables where that can be: Spark takes much less time.
        """
        stand_in = self.stand_ins(template, alike=alike)
        if stand_in is not None:
            try:
                return self.frames.analyse(stand_in)
            except PySparkException:
                pass  # the tables themselves may have more (``_metadata``), and give the right message
        return self.frames.analyse(template)

    def stand_ins(self, template: str, *, alike: bool = False) -> str | None:
        """Return a template with stand-ins for the caller's tables, None where one has none.

        With ``alike`` their columns have to have the notes and the nullability of the tables' own, too.
        """
        texts: dict[str, str] = {}
        for name, table in self._named_in(template):
            if table.stand_in is None or (alike and not all(map(is_plain, table.fields))):
                return None
            texts[name] = table.stand_in
        return substitute(template, texts)

    def barred(self, template: str) -> list[str]:
        """Return what a template reads that Spark can analyse but not read."""
        tables = (table for _, table in self._named_in(template) if table.needs_keys)
        return sorted(f"lookup table {table.name!r}" for table in tables)

    def _named_in(self, template: str) -> Iterator[tuple[str, Table]]:
        """Yield the caller's tables in a template by the names of their placeholders."""
        used = placeholders(template)
        named = (((table.placeholder or "").strip("{}"), table) for table in self._known.values())
        return ((name, table) for name, table in named if name in used)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._tables.values())

    @property
    def used(self) -> list[Table]:
        return list(self._known.values())

    def of(self, node: exp.Table) -> Table:
        """Return the table that a name in the query means; Spark's errors come out unchanged."""
        return self.mapped(dotted(node)) or self._from_session(node)

    def find_current(self, node: exp.Table) -> Callable[[], tuple[str, ...]] | None:
        """Return what tells the catalog and database that a name may be in, None for the caller's tables."""
        return None if dotted(node).lower() in self._tables else lambda: self._where

    @cached_property
    def _where(self) -> tuple[str, ...]:
        catalog = self.frames.spark.catalog
        return catalog.currentCatalog().lower(), catalog.currentDatabase().lower()

    def mapped(self, name: str) -> Table | None:
        """Return the caller's table of that (possibly dotted) name, or None."""
        key = name.lower()
        if key not in self._tables:
            return None
        if key not in self._known:
            self._known[key] = self._make(*self._tables[key])
        return self._known[key]

    def lookup(self, node: exp.Table) -> Lookup | None:
        """Return the lookup table that a name in the query means, None for all others."""
        table = self.mapped(dotted(node))
        return None if table is None else table.lookup

    def _from_session(self, node: exp.Table) -> Table:
        parts = [part.name for part in node.parts]
        key = ".".join(f"`{part.lower()}`" for part in parts)
        if key not in self._known:
            frame = self.frames.sql(f"SELECT * FROM {'.'.join(map(quote, parts))}")
            opens = self._opens_views
            settings = self.settings if opens else None
            left = "" if opens else "Spark Connect looks its name up again for each action"
            self._known[key] = Table(
                dotted(node), lambda: frame, settings=settings, fixed=len(parts) == 1, left=left
            )
        return self._known[key]

    def _make(self, name: str, where: Any) -> Table:
        if isinstance(where, str | Path):
            where = open_path(self.frames.spark, where, self.settings.conf, self.settings.storage)
        if isinstance(where, PathTable):
            return self._from_path(name, where)
        if hasattr(where, "schema") and hasattr(where, "mapInArrow"):
            return self._from_frame(name, where, fixed=True)
        if isinstance(where, LookupTable):
            lookup, frame = lookup_of(self.frames, where, self.settings.storage)
            if self.settings.options.memory_budget is not None and lookup.scan is not None:
                # Tables can be spilled; what an index returns beside a scan would stay in memory.
                self.notes.append(f"{name}: option memory_budget is set, so only its scan is read")
                return self._from_frame(name, frame, fixed=True)
            return Table(name, lambda: frame, None, self.frames.place(frame), lookup)
        raise InputError(
            f"table {name!r} is given as {type(where).__name__}: expected a path to Parquet, CSV or JSON "
            "files (a file, a folder or a glob), a Spark DataFrame, or what millrace.lookup returns"
        )

    def _from_path(self, name: str, table: PathTable) -> Table:
        if table.how:
            self.notes.append(f"{name}, {table.path}: {table.how}")
        if table.files is None and not table.why:
            return self._from_frame(name, table.frame, fixed=False)
        place = self.frames.place(lambda: table.frame)
        return Table(name, lambda: table.frame, table.files, place, left=table.why)

    def _from_frame(self, name: str, frame: DataFrame, *, fixed: bool) -> Table:
        place = self.frames.place(frame)
        return Table(name, lambda: frame, None, place, settings=self.settings, fixed=fixed)
