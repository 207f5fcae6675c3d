"""``df.millrace``: Millrace's functions as methods of any DataFrame, once this module is imported.

>>> import millrace.api.accessor  # doctest: +SKIP
>>> mails.millrace.where(is_spam("text"), "size < 100000").count()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from millrace.api import predicates as filters, query as results, session
from millrace.options import Options
from millrace.spark.patches import watch

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.reports.planned import Explanation
    from millrace.reports.run_report import RunReport
    from millrace.spark.session import Mode


class Accessor:
    """Millrace's functions with a DataFrame as their first argument."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df

    def where(
        self, *predicates: object, policy: Any = None, options: Options | dict[str, Any] | None = None
    ) -> DataFrame:
        """Return the rows that pass every predicate; see :func:`millrace.where`."""
        return filters.where(self._df, *predicates, policy=policy, options=options)

    def join(self, *others: Any, on: Any, **settings: Any) -> DataFrame:
        """Return the join with other relations; see :func:`millrace.join`."""
        return session.join(self._df, *others, on=on, **settings)

    def sql(self, query: str, name: str = "this", **settings: Any) -> DataFrame:
        """Return the answer of a query in which the DataFrame has a name; see :func:`millrace.sql`."""
        tables = {**settings.pop("tables", {}), name: self._df}
        return session.sql(query, spark=self._df.sparkSession, tables=tables, **settings)

    def explain(self, mode: Mode = "simple") -> Explanation:
        """Return what Millrace does for it; see :func:`millrace.explain`."""
        return results.explain(self._df, mode)

    def report(self) -> RunReport:
        """Return the figures of its latest run; see :func:`millrace.report`."""
        return results.report(self._df)

    def to_batches(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Run it and yield rows as they come; see :func:`millrace.to_batches`."""
        return results.to_batches(self._df, batch_size)

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if not name.startswith("_")]


watch()
DataFrame.millrace = property(Accessor)  # type: ignore[attr-defined]  # the parent of both kinds
