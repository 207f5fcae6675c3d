"""What decides how a query is read: the session's settings, and the run's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millrace.options import Options, StorageOptions
from millrace.spark.session import SessionConf
from millrace.sql.syntax.parse import Statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    root = statement.root
    names = Counter(cte.alias.lower() for cte in root.find_all(exp.CTE)) if root else {}
    return any(count > 1 for count in names.values())


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
        """How to reach object stores."""
        return StorageOptions.of(self.options.storage_options)

    @property
    def ansi(self) -> bool:
        """Whether the session coerces by the ANSI rules."""
        return self.conf.is_on("spark.sql.ansi.enabled", "true")

    @property
    def precedence(self) -> bool:
        """Whether JOIN binds closer than a comma."""
        return self.ansi and self.conf.is_on("spark.sql.ansi.relationPrecedence")

    @property
    def time_zone(self) -> str:
        """The session's."""
        return self.conf.get("spark.sql.session.timeZone")

    @property
    def ordinals(self) -> bool:
        """Whether a number in ORDER BY is the place of a result column."""
        return self.conf.is_on("spark.sql.orderByOrdinal", "true")

    def bars(self, statement: Statement) -> str | None:
        """Return why the session's settings keep a whole query with Spark, or None."""
        for bar in _BARS:
            value = self.conf.get(bar.key, bar.default) if bar.concerns(statement) else ""
            if value.lower() in bar.values:
                return f"{bar.key} is {value}: {bar.why}"
        return None
