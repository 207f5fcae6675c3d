"""The query as written: what Spark makes of it, and what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import types as t
from sqlglot import exp

from millrace.sql.session.errors import as_written
from millrace.sql.session.suggestions import suggestion
from millrace.sql.session.tables import Catalog
from millrace.sql.syntax.edits import EditedText, Segment, join
from millrace.sql.syntax.parse import Statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Understood:
    """What Spark made of a query as written.

    Attributes:
        template: The query, the caller's tables replaced by queries without rows.
        frame: Its DataFrame.
    """

    template: str
    frame: DataFrame


class Original:
    """The query as written. Only what is needed of it is made."""

    def __init__(self, catalog: Catalog, statement: Statement, text: EditedText) -> None:
        self._catalog = catalog
        self._statement = statement
        self._text = text
        self._segments = text.original()
        self.template = join(self._segments)

    @cached_property
    def frame(self) -> DataFrame:
        """Its DataFrame; Spark's errors come out in the words of the query as written."""
        return analyse(self._catalog, self._segments, self._text.text)

    @cached_property
    def analysed(self) -> DataFrame:
        """A DataFrame of its columns; raises as :attr:`frame` does."""
        try:
            return self._catalog.analyse(self.template)
        except PySparkException:
            return self.frame

    @property
    def understood(self) -> Understood | None:
        """What Spark made of it, None where that cannot be compared with what it makes of it later.

        Spark numbers common table expressions, and so makes another thing of them each time.
        """
        root = self._statement.root
        stand_in = self._catalog.stand_ins(self.template)
        if root is None or stand_in is None or root.find(exp.CTE) is not None:
            return None
        return Understood(stand_in, self.analysed)

    @property
    def schema(self) -> t.StructType:
        """The schema of its result; raises as :attr:`frame` does."""
        return self.analysed.schema


def analyse(catalog: Catalog, segments: Sequence[Segment], text: str) -> DataFrame:
    """Let Spark analyse pieces of a text; its errors come out in the words of the whole."""
    frames = catalog.frames

    def suggest(error: AnalysisException, place: int | None) -> str:
        return suggestion(error, frames.spark, catalog.given, text, place)

    try:
        return frames.analyse(join(segments))
    except PySparkException as error:
        raise as_written(error, frames.sent(segments), text, suggest) from None
