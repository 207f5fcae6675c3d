"""The query as written, and errors of planning: Spark's in the user's words, and faults of Millrace's own.

Spark sees the query with its names bound: a table may stand there under a name of ours. So what Spark says
about a place is said again about the place in the user's text, with what a misspelled table, function or
keyword may have been meant to be; of columns Spark tells itself. A fault of Millrace's own is no answer: a
query that Spark can answer is answered, and the log says what went wrong.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession, types as t
from sqlglot import exp

from millrace.errors import MillraceWarning, first_line, near
from millrace.sql.session.functions import restored
from millrace.sql.session.tables import Catalog
from millrace.sql.syntax.edits import EditedText, Segment, join
from millrace.sql.syntax.parse import Statement, Unsupported
from millrace.sql.syntax.scopes import inline_definitions

is_strict = False
"""Whether faults are raised all the same. Tests set it, so that they see them."""

_log = logging.getLogger("millrace")

_PLACE = re.compile(r"line (\d+),? pos (\d+)")
_PICTURE = re.compile(r"\n+== SQL")
_NAME = re.compile(r"__millrace_[0-9a-f]{12}_\w+|_pyspark_connect_temp_view_[0-9a-f]{32}")
_KEYWORDS = (
    "SELECT", "DISTINCT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "UNION", "EXCEPT",
    "INTERSECT", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "OUTER", "CROSS", "SEMI", "ANTI", "USING",
    "BETWEEN", "EXISTS", "WINDOW", "PARTITION", "LATERAL", "VALUES", "QUALIFY", "WITH",
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")


class Analysis(NamedTuple):
    """What Spark made of a query, with queries without rows in the place of the caller's tables.

    Definitions are in the place of their names.
    """

    template: str
    frame: DataFrame


class Original:
    """The query as written. Only what is needed of it is made."""

    def __init__(self, catalog: Catalog, statement: Statement, text: EditedText) -> None:
        self._catalog, self.statement, self._text = catalog, statement, text
        self._segments = text.original()
        self.template = join(self._segments)

    @cached_property
    def frame(self) -> DataFrame:
        """Its DataFrame; Spark's errors come out in the words of the query as written."""
        return analyse(self._catalog, self._segments, self._text.text)

    @cached_property
    def _analysed(self) -> DataFrame:
        try:
            return self._catalog.analyse(self.template)
        except PySparkException:
            return self.frame

    @property
    def schema(self) -> t.StructType:
        """The schema of its result; raises as :attr:`frame` does."""
        return self._analysed.schema

    @property
    def analysis(self) -> Analysis | None:
        """What Spark made of it, None where that cannot be compared with what it makes of it later.

        Spark numbers common table expressions, and so makes another thing of them each time: they are
        compared in the place of their names.
        """
        root = self.statement.root
        stand_in = self._catalog.stand_ins(self.template)
        if root is None or stand_in is None:
            return None
        if root.find(exp.CTE) is None:
            return Analysis(stand_in, self._analysed)
        try:
            inlined = inline_definitions(self.statement, self._text)
            if inlined is None or (template := self._catalog.stand_ins(inlined)) is None:
                return None
            return Analysis(template, self._catalog.frames.analyse(template))
        except (Unsupported, PySparkException):
            return None


def analyse(catalog: Catalog, segments: Sequence[Segment], text: str) -> DataFrame:
    """Let Spark analyse pieces of a text; its errors come out in the words of the whole."""
    try:
        return catalog.frames.analyse(join(segments))
    except PySparkException as error:
        raise as_written(error, catalog, segments, text) from None


def contain(error: Exception) -> str:
    """Log an error that nobody expected, with its traceback; return why Spark runs the query.

    The error itself is raised where faults are not to be contained, or where it is a warning that the user
    wants to be an error.
    """
    if is_strict or isinstance(error, MillraceWarning):
        raise error
    _log.error("a fault in planning; Spark runs the query as written", exc_info=error)
    return f"a fault in planning, which the log has: {type(error).__name__}: {first_line(error)}"


def as_written(
    error: PySparkException, catalog: Catalog, segments: Sequence[Segment], text: str
) -> PySparkException:
    """Return an error about the text that Spark got, these segments, as one about what the user wrote.

    It is of the same class (of ``pyspark.errors``) and condition; the very one where it is of another kind.
    """
    if not isinstance(error, AnalysisException):
        return error
    kind = ParseException if isinstance(error, ParseException) else AnalysisException
    message = restored(str(error).strip())
    place = _PLACE.search(message)
    condition = error.getCondition()
    # Behind the place comes Spark's plan, or its own picture of the text.
    message = _PICTURE.split(message, maxsplit=1)[0]
    if place is not None and place.end() < len(message):
        message = message[: place.end()] + message[place.end() :].split("\n", 1)[0].rstrip(";")
    message = _NAME.sub("…", message.removeprefix(f"[{condition}] "))
    pieces = catalog.frames.fill_segments(segments)
    origin = None if place is None else _origin(int(place[1]), int(place[2]), pieces, text)
    if meant := _suggest(error, catalog, text, origin):
        message += f"\n{meant}"
    if origin is not None:
        *before, last = text[:origin].split("\n")
        line, column, lines = len(before) + 1, len(last), text.split("\n")
        message = _PLACE.sub(f"line {line} pos {column}", message)
        message += "\n".join(["\n== SQL ==", *lines[:line], "-" * column + "^^^", *lines[line:]])
    return kind(message=message, errorClass=condition, messageParameters=error.getMessageParameters() or {})


def _origin(line: int, column: int, pieces: Sequence[tuple[Segment, str]], text: str) -> int | None:
    """Return the place in the user's text of a place in Spark's, lines counted from 1 and columns from 0."""
    lines = "".join(piece for _, piece in pieces).split("\n")
    if line > len(lines) or column > len(lines[line - 1]):
        return None
    place = sum(len(line_text) + 1 for line_text in lines[: line - 1]) + column
    for segment, piece in pieces:
        if place < len(piece):
            return segment.origin + (place if segment.copied else 0)
        place -= len(piece)
    return len(text)


def _suggest(error: AnalysisException, catalog: Catalog, text: str, place: int | None) -> str:
    """Return a sentence such as ``did you mean 'orders'?``; empty where nothing is near.

    ``place`` is where in the text Spark stopped reading, if it is known.
    """
    condition, named = error.getCondition(), error.getMessageParameters() or {}
    spark = catalog.frames.spark
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        tables = [*catalog.names, *_list(spark, "SHOW TABLES", "tableName")]
        return _near(named.get("relationName", ""), tables)
    if condition in ("UNRESOLVED_ROUTINE", "UNRESOLVABLE_TABLE_VALUED_FUNCTION"):
        name = named.get("routineName") or named.get("name", "")
        return _near(name, _list(spark, "SHOW FUNCTIONS", "function"))
    if condition == "PARSE_SYNTAX_ERROR" and place is not None:
        return _keyword(text, place)
    return ""


def _list(spark: SparkSession, statement: str, column: str) -> list[str]:
    try:
        return [row[column] for row in spark.sql(statement).collect()]
    except PySparkException:  # a catalog that lists nothing to this user
        return []


def _near(name: str, names: Iterable[str]) -> str:
    hint = near(
        name.replace("`", "").rsplit(".", 1)[-1], (n for n in names if not n.startswith("__millrace"))
    )
    return hint if hint.startswith("did you mean") else ""


def _keyword(text: str, place: int) -> str:
    """Look at the word before the one where Spark stopped, which Spark took for a name, and at that one."""
    words = [match[0] for match in _WORD.finditer(text) if match.start() <= place]
    hints = (_near(word, _KEYWORDS) for word in words[-2:] if word.upper() not in _KEYWORDS)
    return next(filter(None, hints), "")
