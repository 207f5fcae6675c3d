"""``millrace.enable``: ``spark.sql``, and pipelines of DataFrames, through Millrace where it pays.

While any session is enabled, actions of DataFrames, ``write`` and ``explain`` are replaced. They read
how their DataFrame was made (:mod:`millrace.api.optimize`) and run what Millrace makes of it. They do what
they always did where that is nothing, for other sessions, and within Millrace.

What writes a pipeline's rows is Millrace's writer. It refuses to replace files that tasks read, which Spark
would empty before it reads them; and so does ``sql`` of an enabled session.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as sf

from millrace.api.optimize import better, why_passing
from millrace.api.query import Query
from millrace.api.session import Session
from millrace.errors import InputError, MillraceError
from millrace.options import Options
from millrace.spark import frames
from millrace.spark.patches import ACTIONS, replace, restore
from millrace.spark.session import alive, internal_query, is_internal_query, session_of
from millrace.sql.plan import Plan
from millrace.sql.session.errors import contain
from millrace.sql.session.functions import Predicates

# In the order in which they came, by the identity of their sessions, which they hold.
_enabled: dict[int, tuple[Enabled, ...]] = {}
_lock = threading.RLock()


class Enabled(AbstractContextManager["Enabled"]):
    """A session whose queries go through Millrace where it pays, until the context is left.

    A session that is enabled several times is so until all contexts are left; the latest options hold.

    Attributes:
        spark: The session.
        options: Settings of all runs.
    """

    def __init__(self, spark: SparkSession, options: Options, predicates: Predicates | None) -> None:
        self.spark = spark
        self.options = options
        self._own = _Own(spark, predicates=predicates, options=options)

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
                frames.choose_by(None)
                restore("enable")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()


def enable(
    spark: SparkSession | None = None,
    options: Options | dict[str, Any] | None = None,
    predicates: Predicates | None = None,
) -> Enabled:
    """Let a session's own ``sql`` and its DataFrames go through Millrace where it pays.

    >>> with millrace.enable(spark):  # doctest: +SKIP
    ...     spark.sql("SELECT … FROM orders JOIN customer ON …").show()
    ...     mails.filter(is_spam("text")).filter(is_ours("text")).count()
    ...     orders.filter("status = 'open'").join(customer, orders.custkey == customer.id).count()

    Without ``with`` it holds until ``disable()`` of what it returns. Rows are Spark's in every case. A
    pipeline of DataFrames is planned when something runs it, as :func:`optimize` plans it: joins, filters by
    functions of Python, and what stands between and above them. A function is called for fewer rows, and a
    row that another condition rejects raises nothing. :func:`explain` of a DataFrame says why it was left to
    Spark, and so does the log ``millrace``, at the level INFO. A session that is enabled several times stays
    so until each is over. Writers of what tasks compute, and ``INSERT OVERWRITE`` of it, raise
    :class:`millrace.errors.InputError` where they would overwrite files that the tasks read.

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
        replace("enable", made, "sql", functools.partial(_sql, made))
        kind = type(made.range(0))
        frames.choose_by(_chosen)
        for name in ACTIONS:
            replace("enable", kind, name, functools.partial(_run, name))
        _enabled[id(made)] = (*_enabled.get(id(made), ()), enabled)
    return enabled


def _sql(spark: SparkSession, plain: Callable[..., DataFrame]) -> Callable[..., DataFrame]:
    """Return what answers a text: as Spark does, unless a part of it is Millrace's."""

    @functools.wraps(plain)
    def sql(sqlQuery: Any, args: Any = None, **named: Any) -> DataFrame:  # noqa: N803  # PySpark's name
        enabled = _latest(spark)
        if enabled is None or not isinstance(sqlQuery, str) or named:
            return plain(sqlQuery, args, **named)
        judged = None
        try:
            query = enabled._own.query(sqlQuery, args)  # noqa: SLF001  # its own
            judged = None if enabled.options.take_all else _why_left(query)
            if judged is None and (query.taken or query.filters):
                return query.df
            why = judged or "; ".join(query.reasons)
        except _Left as left:
            why = judged = str(left)
        except (MillraceError, PySparkException):
            explain = functools.partial(plain, f"EXPLAIN {sqlQuery}", args)
            frames.refuse_statement(spark, sqlQuery, lambda: str(explain().collect()[0][0]))
            return plain(sqlQuery, args)  # no query, or one that Spark refuses, in its own words
        except Exception as error:  # noqa: BLE001  # whatever it is, Spark may answer
            why = contain(error)
        made = plain(sqlQuery, args)
        frames.left_to_spark(made, why, for_good=judged is not None)
        return made

    return sql


class _Left(InputError):
    """Says why a text is Spark's."""


class _Own(Session):
    """Plans the texts of an enabled session."""

    def _judge(self, plan: Plan) -> None:
        parts = [] if self._options.take_all else [*plan.whole()]
        if any(part.filters for part in parts):  # only Millrace knows the functions that it calls
            return
        if any(block.times is not None for part in parts for block in part.blocks):
            raise _Left("what is done with a join of streams may need its watermark (option take_all)")


def _why_left(query: Query) -> str | None:
    """Return why a text is Spark's although Millrace has a part in it; None where it is not."""
    if query.filters:  # only Millrace knows the functions that it calls
        return None
    return None if query.df.isStreaming else why_passing(query.blocks)


_running = frames.Within()


def _run(name: str, plain: Any, *, is_property: bool = False) -> Any:
    """Return a method or property that runs what Millrace has in a DataFrame's place."""
    if isinstance(plain, property):
        return property(_run(name, plain.fget, is_property=True), doc=plain.__doc__)

    @functools.wraps(plain)
    def run(self: DataFrame, *args: Any, **named: Any) -> Any:
        if _latest(self.sparkSession) is None or _running.action:
            return plain(self, *args, **named)
        _running.action = True
        try:
            chosen = _count_in_place(self) if name == "count" else frames.chosen_in_place(self)
            if chosen is None:
                done = plain(self, *args, **named)
                return frames.refuse_overwriting(self, done) if name == "write" else done
            if name == "count":
                return int(chosen.collect()[0][0])
            return getattr(chosen, name) if is_property else getattr(chosen, name)(*args, **named)
        finally:
            _running.action = False

    return run


def _count_in_place(df: DataFrame) -> Any:
    """Return what counts the rows of a pipeline in its place, without their columns."""
    if frames.carried(df).runs or df.isStreaming or frames.is_left_for_good(df):
        return None
    with internal_query():
        counted = df.agg(sf.count(sf.lit(1)))
    chosen = frames.chosen_in_place(counted)
    if chosen is None:
        frames.left_to_spark(df, frames.why_left(counted))
    else:
        frames.ran_in_place(df, chosen)
    return chosen


def _chosen(df: Any) -> Any:
    enabled = _latest(df.sparkSession)
    return None if enabled is None else better(df, enabled.options)


def _latest(spark: SparkSession) -> Enabled | None:
    found = None if is_internal_query() else _enabled.get(id(spark))
    return found[-1] if found else None
