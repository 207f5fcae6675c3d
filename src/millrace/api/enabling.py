"""``millrace.enable``: ``spark.sql``, and chains of ``filter`` and ``join``, through Millrace where it pays.

``filter``, ``where`` and ``join`` of PySpark's DataFrames are replaced while any session is enabled, and do
what they always did for other sessions and within Millrace. What they return is Spark's DataFrame, which
knows a better one of the same rows: methods that run something are called on that one, and on Spark's where
that one has not the columns that are asked for. What other methods return above a join is Spark's as well,
and knows a better one.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions as sf

from millrace.api.chains import filtered, joined, linked
from millrace.api.columns import both, equal, taken
from millrace.api.session import Session
from millrace.errors import MillraceError
from millrace.options import Options
from millrace.spark.filter import where
from millrace.spark.frames import left_to_spark
from millrace.spark.patches import noting, replace, restore, watch
from millrace.spark.predicates import Applied
from millrace.spark.session import alive, is_internal_query, session_of
from millrace.sql.session.errors import contain
from millrace.sql.session.functions import Predicates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In the order in which they came, by the identity of their sessions, which they hold.
_enabled: dict[int, tuple[Enabled, ...]] = {}
_lock = threading.RLock()


class Enabled:
    """A session whose queries go through Millrace where it pays, until the context is left.

    A session that is enabled several times is so until all contexts are left; the latest options hold.

    Attributes:
        spark: The session.
        options: Settings of all runs.
    """

    def __init__(self, spark: SparkSession, options: Options, predicates: Predicates | None) -> None:
        self.spark = spark
        self.options = options
        self._own = Session(spark, predicates=predicates, options=options)

    def disable(self) -> None:
        """Give the session back its own methods if nobody else has it enabled; once is enough."""
        with _lock:
            others = tuple(each for each in _enabled.get(id(self.spark), ()) if each is not self)
            if others:
                _enabled[id(self.spark)] = others  # at once, for threads that look it up
            else:
                _enabled.pop(id(self.spark), None)
                restore("enable", self.spark)
            if not _enabled:
                restore("enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()

    def _sql(
        self, plain: Callable[..., DataFrame], text: Any, args: Any, named: Mapping[str, Any]
    ) -> DataFrame:
        """Answer a text: as Spark does, unless a part of it is Millrace's."""
        if is_internal_query() or not isinstance(text, str) or named:
            return plain(text, args, **named)
        try:
            query = self._own.query(text, args)
            if query.taken or query.filters:
                return query.df
            why = "; ".join(query.reasons)
        except (MillraceError, PySparkException):
            return plain(text, args)  # no query, or one that Spark refuses, in its own words
        except Exception as error:  # noqa: BLE001  # whatever it is, Spark may answer
            why = contain(error)
        made = plain(text, args)
        left_to_spark(made, why)
        return made


def enable(
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
) -> Enabled:
    """Let a session's own ``sql``, ``filter``, ``where`` and ``join`` go through Millrace where it pays.

    >>> with millrace.enable(spark):  # doctest: +SKIP
    ...     spark.sql("SELECT … FROM orders JOIN customer ON …").show()
    ...     mails.filter(is_spam("text")).filter(is_ours("text")).count()
    ...     orders.filter("status = 'open'").join(customer, orders.custkey == customer.id).count()

    Without ``with`` it holds until ``disable()`` of what it returns. Rows are Spark's in every case. Taken
    are queries of ``spark.sql``, chains of ``filter`` by functions of Python, and chains of inner joins,
    with filters by SQL text below and, without dotted names, above: joins by names of columns (one, or a
    list), and on equalities of columns (one, several with ``&``, or a list). A column there is taken of a
    DataFrame that is joined (``orders.custkey``, ``orders["custkey"]``) while the session is enabled, or is
    ``col("custkey")`` of a name that one of them has. Other comparisons stay with Spark, and so does, on
    Spark Connect, whatever is derived from a join by columns of the DataFrames that were joined
    (``orders.total``, in place of ``"total"``). A chain of joins has to keep few rows, or small ones: all
    its columns leave the tasks. :func:`explain` of a DataFrame says why it was left to Spark, and so does the
    log ``millrace``, at the level INFO. A session that is enabled several times stays so until each is over.

    Args:
        spark: The session; by default the active one, or a new one.
        options: Settings of all runs.
        predicates: As for :func:`sql`, to call in ``spark.sql``.

    Raises:
        MillraceError: An argument cannot be used.
    """
    made = alive(session_of(spark, {}))
    enabled = Enabled(made, Options.of(options), predicates)
    with _lock:
        watch("enable")
        replace("enable", made, "sql", functools.partial(_sql, made))
        frames, columns = type(made.range(0)), type(sf.lit(0))
        for kind, name, make in (
            (frames, "filter", _filter), (frames, "where", _filter), (frames, "join", _join),
            (frames, "__getattr__", noting(taken)), (frames, "__getitem__", noting(taken)),
            (columns, "__eq__", noting(equal)), (columns, "__and__", noting(both)),
        ):  # fmt: skip
            replace("enable", kind, name, make)
        _enabled[id(made)] = (*_enabled.get(id(made), ()), enabled)
    return enabled


def _sql(spark: SparkSession, plain: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @functools.wraps(plain)
    def sql(sqlQuery: Any, args: Any = None, **named: Any) -> DataFrame:  # noqa: N803  # PySpark's name
        enabled = _latest(spark)
        if enabled is None:
            return plain(sqlQuery, args, **named)
        return enabled._sql(plain, sqlQuery, args, named)  # noqa: SLF001  # its own

    return sql


def _filter(plain: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @functools.wraps(plain)
    def filter_(self: DataFrame, condition: Any) -> DataFrame:
        enabled = _of(self)
        if enabled is None:
            return plain(self, condition)
        if isinstance(condition, Applied):
            return where(self, condition, options=enabled.options)
        made: DataFrame = plain(self, condition)
        return linked(made, lambda: filtered(self, condition), enabled.options)

    return filter_


def _join(plain: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    @functools.wraps(plain)
    def join(self: DataFrame, other: DataFrame, on: Any = None, how: Any = None) -> DataFrame:
        enabled = _of(self)
        made: DataFrame = plain(self, other, on, how)
        return (
            made if enabled is None else linked(made, lambda: joined(self, other, on, how), enabled.options)
        )

    return join


def _of(df: DataFrame) -> Enabled | None:
    return None if is_internal_query() else _latest(df.sparkSession)


def _latest(spark: SparkSession) -> Enabled | None:
    found = _enabled.get(id(spark))
    return found[-1] if found else None
