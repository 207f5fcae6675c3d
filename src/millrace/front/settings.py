"""What decides how a query is read: the session's settings, and the run's."""

from __future__ import annotations

from collections import Counter
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


class Settings:
    """The settings of a session and a run; the session is asked for each when it is first needed.

    Args:
        spark: The session.
        options: Of the run.

    Attributes:
        options: Of the run.
        conf: All of the session's, for who needs others.
    """

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
        for key in _BARS:
            if self.conf.is_on(key):
                return f"{key} is true"
        if '"' in statement.text and self.conf.is_on(_DOUBLE_QUOTES):
            return f"{_DOUBLE_QUOTES} is true"
        policy = self.conf.get(_CTE_POLICY, "CORRECTED").upper()
        if policy != "CORRECTED" and statement.root is not None:
            names = Counter(cte.alias.lower() for cte in statement.root.find_all(exp.CTE))
            if any(count > 1 for count in names.values()):
                return f"{_CTE_POLICY} is {policy}, and common table expressions hide each other"
        return None
