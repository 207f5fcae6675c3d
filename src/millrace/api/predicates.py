"""Filters by Python functions: ``where`` and ``filter``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.api.monitor import by_default
from millrace.options import Options
from millrace.spark.filter import where as run
from millrace.spark.patches import watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


by_default()  # before there is a DataFrame to run


def where(
    df: DataFrame,
    *predicates: object,
    policy: str | None = None,
    options: Options | dict[str, Any] | None = None,
) -> DataFrame:
    """Return the rows of a DataFrame that pass every predicate, cheapest way found while it runs.

    The rows are those of Spark's ``where`` with the conditions joined by AND, in their order within
    a partition. The order in which predicates are called is found and changed during the run; the
    order as written is where it begins.

    >>> millrace.where(df, is_spam("text"), in_stock("id", "day"), "price > 3")  # doctest: +SKIP

    Args:
        df: Any DataFrame, streaming ones too.
        predicates: Each a function made by :func:`predicate` or by PySpark's ``udf``, ``pandas_udf``
            or ``arrow_udf`` that is applied to columns (or a tuple of the function and its columns),
            or a condition that Spark evaluates: a Column or SQL text. Functions in a larger
            expression, such as ``a("x") | b("x")``, stay with Spark.
        policy: Routing policy; overrides that of the options.
        options: Settings of the run.

    Raises:
        MillraceError: A predicate, column, option or policy cannot be used.
    """
    watch()  # a session on Spark Connect may have come since
    return run(df, *predicates, policy=policy, options=options)


def filter(  # noqa: A001  # named as PySpark's
    *predicates: object,
    policy: str | None = None,
    options: Options | dict[str, Any] | None = None,
) -> Callable[[DataFrame], DataFrame]:
    """Return :func:`where` as a step of a chain.

    >>> mails.transform(millrace.filter(is_spam("text"), in_stock("id"))).count()  # doctest: +SKIP

    Args:
        predicates: As for :func:`where`.
        policy: As for :func:`where`.
        options: As for :func:`where`.
    """
    return lambda df: where(df, *predicates, policy=policy, options=options)
