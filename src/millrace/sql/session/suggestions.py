"""What a misspelled table, function or keyword may have been meant to be; of columns Spark tells itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEYWORDS = (
    "SELECT", "DISTINCT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "EXCEPT",
    "INTERSECT", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "SEMI", "ANTI", "USING",
    "BETWEEN", "EXISTS", "WINDOW", "PARTITION", "LATERAL", "VALUES", "QUALIFY", "WITH",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
_CLOSE = 0.7


def suggestion(
    error: AnalysisException, spark: SparkSession, tables: Iterable[str], text: str, place: int | None
) -> str:
    """Return a sentence such as ``did you mean 'orders'?``; empty where nothing is near.

    Args:
        error: What Spark raised.
        spark: The session, which is asked for its tables and functions.
        tables: The caller's own.
        text: The query.
        place: Where in it Spark stopped reading, if it is known.
    """
    condition, named = error.getCondition(), error.getMessageParameters() or {}
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        return _near(named.get("relationName", ""), [*tables, *_asked(spark, "SHOW TABLES", "tableName")])
    if condition in ("UNRESOLVED_ROUTINE", "UNRESOLVABLE_TABLE_VALUED_FUNCTION"):
        name = named.get("routineName") or named.get("name", "")
        return _near(name, _asked(spark, "SHOW FUNCTIONS", "function"))
    if condition == "PARSE_SYNTAX_ERROR" and place is not None:
        return _keyword(text, place)
    return ""


def _asked(spark: SparkSession, statement: str, column: str) -> list[str]:
    try:
        return [row[column] for row in spark.sql(statement).collect()]
    except PySparkException:  # a catalog that lists nothing to this user
        return []


def _near(name: str, known: Iterable[str]) -> str:
    wanted = name.replace("`", "").rsplit(".", 1)[-1]
    names = {each.lower(): each for each in known if not each.startswith("__millrace")}
    close = get_close_matches(wanted.lower(), names, n=3, cutoff=_CLOSE)
    return f"did you mean {' or '.join(repr(names[each]) for each in close)}?" if close else ""


def _keyword(text: str, place: int) -> str:
    """Look at the word before the one where Spark stopped, which Spark took for a name, and at that one."""
    words = [each[0] for each in _WORD.finditer(text) if each.start() <= place]
    for word in words[-2:]:
        close = get_close_matches(word.upper(), _KEYWORDS, n=1, cutoff=_CLOSE)
        if close and close[0] != word.upper():
            return f"did you mean {close[0]}?"
    return ""
