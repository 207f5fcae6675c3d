"""What decides how a query is read: the session's settings, and the run's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

from millrace.front.parse import Statement
from millrace.options import Options, StorageOptions
from millrace.spark.conf import SessionConf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings under which names or the text mean something else than what is read here.
_BARS = ("spark.sql.caseSensitive", "spark.sql.parser.quotedRegexColumnNames")
_DOUBLE_QUOTES = "spark.sql.ansi.doubleQuotedIdentifiers"
_CTE_POLICY = "spark.sql.legacy.ctePrecedencePolicy"


@dataclass(frozen=True)
class Settings:
    """The settings of a session and a run.

    Attributes:
        options: Of the run.
        ansi: Whether the session coerces by the ANSI rules.
        precedence: Whether JOIN binds closer than a comma.
        time_zone: The session's.
        ordinals: Whether a number in ORDER BY is the place of a result column.
        barring: Settings that are on and leave every query to Spark.
        quoted: Whether double quotes are for names.
        cte_policy: Which of two common table expressions of one name is meant.
        conf: All of the session's, for who needs others.
    """

    options: Options
    ansi: bool
    precedence: bool
    time_zone: str
    ordinals: bool
    barring: tuple[str, ...]
    quoted: bool
    cte_policy: str
    conf: SessionConf

    @property
    def storage(self) -> StorageOptions:
        """How to reach object stores."""
        return StorageOptions.of(self.options.storage_options)

    @classmethod
    def of(cls, spark: SparkSession, options: Options) -> Settings:
        """Read the session's settings."""
        conf = SessionConf(spark)
        ansi = conf.is_on("spark.sql.ansi.enabled", "true")
        return cls(
            options,
            ansi,
            ansi and conf.is_on("spark.sql.ansi.relationPrecedence"),
            conf.get("spark.sql.session.timeZone"),
            conf.is_on("spark.sql.orderByOrdinal", "true"),
            tuple(key for key in _BARS if conf.is_on(key)),
            conf.is_on(_DOUBLE_QUOTES),
            conf.get(_CTE_POLICY, "CORRECTED").upper(),
            conf,
        )

    def bars(self, statement: Statement) -> str | None:
        """Return why the session's settings keep a whole query with Spark, or None."""
        if self.barring:
            return f"{self.barring[0]} is true"
        if self.quoted and '"' in statement.text:
            return f"{_DOUBLE_QUOTES} is true"
        if self.cte_policy != "CORRECTED" and statement.root is not None:
            names = Counter(cte.alias.lower() for cte in statement.root.find_all(exp.CTE))
            if any(count > 1 for count in names.values()):
                return f"{_CTE_POLICY} is {self.cte_policy}, and common table expressions hide each other"
        return None
