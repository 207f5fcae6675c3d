"""What Spark is asked: its settings, what templates give, and how large their results are.

On classic Spark a DataFrame that a text names is a temporary view under a name of ours, made once a query and
dropped when the query is ready: what Spark has analysed keeps the rows, not the name. (``spark.sql(text,
name=df)`` makes and drops a view at every call.) On Spark Connect the text is analysed anew for each action,
and DataFrames travel with it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession, types as t
from pyspark.sql.catalog import Catalog as SparkCatalog
from sqlglot import exp

from millrace.engine.arrays import fixed_width
from millrace.options import Options, StorageOptions
from millrace.spark.session import SIZE_UNITS, SessionConf, explained, is_connect, kept_in_cache
from millrace.sql.expr.types import field_of
from millrace.sql.syntax.edits import PLACEHOLDER, Segment, placeholders
from millrace.sql.syntax.parse import Statement

_SIZE = re.compile(r"sizeInBytes=([\d.E+]+) (\w+)(?:, rowCount=([\d.E+]+))?")
_UNITS = {unit: 1024**i for i, unit in enumerate(SIZE_UNITS)}
# Where Spark knows nothing it takes 8 EiB, or what is left of these after a projection or a filter.
_UNKNOWN_BYTES = 1 << 50

# As long as the names that Spark Connect's client makes up.
_SOME_NAME = "_pyspark_connect_temp_view_" + 32 * "0"


class Frames:
    """What the templates of one query need of the session: DataFrames by name, and parameters."""

    def __init__(self, spark: SparkSession, args: Mapping[str, Any] | None = None) -> None:
        self.spark = spark
        self._args = dict(args or {})
        self._frames: dict[str, DataFrame | Callable[[], DataFrame]] = {}
        self._views: dict[str, str] = {}
        self._kept: dict[str, DataFrame] = {}
        self._analysed: dict[str, DataFrame] = {}
        self._rows: dict[str, list[Row]] = {}
        self._stem = f"__millrace_{uuid.uuid4().hex[:12]}"

    def place(self, frame: DataFrame | Callable[[], DataFrame]) -> str:
        """Return the placeholder that stands for a DataFrame, or for what makes it when a text needs it."""
        return self.put(f"t{len(self._frames)}", frame)

    def put(self, name: str, frame: DataFrame | Callable[[], DataFrame], *, unshared: bool = False) -> str:
        """Let a name stand for a DataFrame, or what makes it, from now on; returns its placeholder.

        Of an unshared one nobody can have cached the rows.
        """
        if self._frames.get(name) is frame:  # what Spark has said of it holds
            return "{" + name + "}"
        if name in self._frames:
            self._drop(name)
            self._kept.pop(name, None)
            self._analysed.clear()
            self._rows.clear()
        self._frames[name] = frame
        if unshared:
            self._kept[name] = self._make(name)
        return "{" + name + "}"

    def sql(self, template: str) -> DataFrame:
        """Let Spark analyse a template; its errors come out unchanged.

        On Spark Connect the analysis happens when the DataFrame's schema is asked for.
        """
        names = placeholders(template)
        # Without parameters an empty mapping is the same as None, and takes classic PySpark fewer calls.
        if names and is_connect(self.spark):
            return self.spark.sql(template, self._args, **{name: self._frame_of(name) for name in names})
        # Without frames Spark takes the text as it is, braces included.
        return self.spark.sql(self._fill(template, {name: self._view(name) for name in names}), self._args)

    def analyse(self, template: str) -> DataFrame:
        """Let Spark analyse a template, once however often; its errors come out unchanged."""
        if template not in self._analysed:
            frame = self.sql(template)
            frame.schema  # noqa: B018  # Spark Connect analyses only now
            self._analysed[template] = frame
        return self._analysed[template]

    def rows(self, template: str) -> list[Row]:
        """Return the rows that a template gives, asked for once; Spark's errors come out unchanged."""
        if template not in self._rows:
            self._rows[template] = self.sql(template).collect()
        return self._rows[template]

    def estimate(self, template: str) -> tuple[int | None, int | None]:
        """Return Spark's own estimate of a template's rows and bytes, None where it has none."""
        return _estimate(lambda: self.rows(f"EXPLAIN COST {template}")[0][0], self.analyse(template).schema)

    def fill_segments(self, segments: Iterable[Segment]) -> list[tuple[Segment, str]]:
        """Return segments with what Spark gets for each, as far as names of as many characters go."""
        connect = is_connect(self.spark)
        filled = []
        for segment in segments:
            names = placeholders(segment.text)
            views = {name: _SOME_NAME if connect else self._views.get(name, "") for name in names}
            filled.append((segment, self._fill(segment.text, views)))
        return filled

    def close(self) -> None:
        """Drop the views: what was analysed does not need them."""
        for name in list(self._views):
            self._drop(name)

    def _drop(self, name: str) -> None:
        view = self._views.pop(name, None)
        if view is not None:
            self._catalog.dropTempView(view)

    @cached_property
    def _catalog(self) -> SparkCatalog:
        return self.spark.catalog  # which is made anew each time

    def _frame_of(self, name: str) -> DataFrame:
        frame = self._kept.get(name)
        if frame is None:
            frame = self._kept[name] = kept_in_cache(self._make(name))
        return frame

    def _make(self, name: str) -> DataFrame:
        frame = self._frames[name]
        return frame() if callable(frame) else frame

    def _view(self, name: str) -> str:
        view = self._views.get(name)
        if view is None:
            view = f"{self._stem}_{name}"
            self._frame_of(name).createOrReplaceTempView(view)
            self._views[name] = view
        return view

    @staticmethod
    def _fill(template: str, names: Mapping[str, str]) -> str:
        return PLACEHOLDER.sub(lambda match: names[match[1]] if match[1] else match[0][0], template)


def estimate(frame: DataFrame) -> tuple[int | None, int | None]:
    """Return Spark's own estimate of a DataFrame's rows and bytes, None where it has none."""
    return _estimate(lambda: explained(frame, "COST"), frame.schema)


def _estimate(explain: Callable[[], str], schema: t.StructType) -> tuple[int | None, int | None]:
    try:
        match = _SIZE.search(explain())
    except PySparkException:
        return None, None
    size = _UNKNOWN_BYTES + 1 if match is None else int(float(match[1]) * _UNITS.get(match[2], 1))
    if match is None or size > _UNKNOWN_BYTES:
        return None, None
    if match[3] is not None:
        return int(float(match[3])), size
    return max(1, size // (8 + sum(map(_default_width, schema.fields)))), size


def _default_width(column: t.StructField) -> int:
    """Return what Spark takes a value of a column to need, in bytes."""
    kind = field_of(column).arrow
    return 100 if kind is None or pa.types.is_nested(kind) else fixed_width(kind) or 20


@dataclass(frozen=True)
class Bar:
    """A setting under which a text means something else than what is read here."""

    key: str
    default: str
    values: tuple[str, ...]  # those that bar, in lower case
    why: str
    # Tells whether a query has what they change.
    concerns: Callable[[Statement], object] = lambda _: True


def _hides_definitions(statement: Statement) -> bool:
    names = [cte.alias.lower() for cte in statement.root.find_all(exp.CTE)] if statement.root else []
    return len(set(names)) < len(names)


_BARS = (
    Bar(
        "spark.sql.ansi.doubleQuotedIdentifiers", "false", ("true",), "double quotes are around names",
        lambda statement: '"' in statement.text,
    ),
    Bar("spark.sql.caseSensitive", "false", ("true",), "names that differ in case alone are two"),
    Bar(
        "spark.sql.parser.quotedRegexColumnNames", "false", ("true",), "a quoted name means several columns",
        lambda statement: "`" in statement.text,
    ),
    Bar(
        "spark.sql.functionResolution.sessionOrder", "second", ("first",),
        "functions of the session hide those of Spark",
    ),
    Bar("spark.sql.path.enabled", "false", ("true",), "the SQL path says which function a name means"),
    Bar(
        "spark.sql.legacy.parser.havingWithoutGroupByAsWhere", "false", ("true",), "HAVING may be WHERE",
        lambda statement: "having" in statement.text.lower(),
    ),
    Bar(
        "spark.sql.legacy.ctePrecedencePolicy", "corrected", ("legacy", "exception"),
        "common table expressions hide each other in another way", _hides_definitions,
    ),
    Bar(
        "spark.sql.legacy.literal.pickMinimumPrecision", "true", ("false",),
        "whole numbers and decimals compare in another type",
    ),
    Bar(
        "spark.sql.legacy.typeCoercion.datetimeToString.enabled", "false", ("true",),
        "dates compare with texts as texts",
    ),
    Bar("spark.sql.crossJoin.enabled", "true", ("false",), "Spark refuses joins without an equality"),
)  # fmt: skip
"""The settings that leave a query to Spark.

All others need no place here. Some are read where they matter, by :class:`Settings`. Some change only what
Spark evaluates, which is the same in the rewritten text. Some change types, and Spark is asked for these.
"""


class Settings:
    """The settings of a session and a run; the session is asked for each when it is first needed."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        self.options = options
        self.conf = SessionConf(spark)

    @property
    def storage(self) -> StorageOptions:
        return StorageOptions.of(self.options.storage_options)

    @property
    def ansi(self) -> bool:
        """Whether the session coerces by the ANSI rules."""
        return self.conf.is_on("spark.sql.ansi.enabled", "true")

    @property
    def time_zone(self) -> str:
        return self.conf.get("spark.sql.session.timeZone")

    def bars(self, statement: Statement) -> str | None:
        """Return why the session's settings keep a whole query with Spark, or None."""
        for bar in _BARS:
            value = self.conf.get(bar.key, bar.default) if bar.concerns(statement) else ""
            if value.lower() in bar.values:
                return f"{bar.key} is {value}: {bar.why}"
        return None
