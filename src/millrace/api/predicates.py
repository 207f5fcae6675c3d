"""Filters by Python functions: ``where``, ``filter``, and what makes a predicate of a function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from millrace.api.progress import by_default
from millrace.options import Options
from millrace.predicates.cascade import Score, ScoreKind
from millrace.spark.cascade import Cascade
from millrace.spark.filter import where as run
from millrace.spark.patches import watch
from millrace.spark.predicates import Predicate, predicate as make

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millrace.predicates.spec import Kind


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


def predicate(
    function: Callable[..., Any] | None = None,
    *,
    kind: Kind = "row",
    name: str | None = None,
    deterministic: bool = True,
    on_error: Literal["fail", "null"] = "fail",
    batch: int | None = None,
    retries: int = 0,
    timeout: float | None = None,
    answers: str | Path | None = None,
    max_in_flight: int | None = None,
    per_second: float | None = None,
    dedupe: bool = False,
    max_requests: int | None = None,
    max_cost: float | None = None,
    cost: float | Callable[[Any, Any], float] | None = None,
    limit_group: str | None = None,
) -> Any:
    """Make a predicate of a Python function, to apply to columns in :func:`where` or use in SQL.

    >>> @millrace.predicate(kind="async", max_in_flight=16, timeout=5.0)  # doctest: +SKIP
    ... async def is_spam(text): ...

    Args:
        function: Returns truth: True, False or None.
        kind: ``"row"``: called with one value per argument; ``"pandas"``: with a Series per argument,
            returns a Series; ``"arrow"``: the same with Arrow arrays; ``"async"``: a coroutine
            function called with one value per argument, or with lists where ``batch`` is given.
        name: What plans, reports and errors call it, and its name in SQL; the function's own by default.
        deterministic: False where it may differ between two calls; it then keeps its place.
        on_error: What becomes of a row for which it raises and which nothing else rejects:
            ``"fail"`` fails the query, ``"null"`` drops the row.
        batch: Rows per call, at most.
        retries: How often a call that raised is repeated, with growing random waits.
        timeout: Seconds for a call, ``async`` only.
        answers: A folder, or a file that ends in ``.sqlite``, on this machine, where answers outlive the
            job: the same job tomorrow, or once more after it failed, asks only for what is missing. They
            count for equal arguments and the same function: its code, what it has captured, what it names.
            Implies ``dedupe``; ``async`` only.
        max_in_flight: Calls at once in the whole job, over all tasks; ``async`` only.
        per_second: Calls a second in the whole job; ``async`` only.
        dedupe: Ask once per job for equal arguments; ``async`` only.
        max_requests: Calls that a query may make in all, repeated ones included; ``async`` only. At the limit
            it stops with :class:`millrace.errors.BudgetError`.
        max_cost: What all calls of a query may cost, in the unit of ``cost``; ``async`` only.
        cost: What a call costs: a number, or a function of its arguments (a tuple; with ``batch`` a list of
            them) and what it returned. At a fixed price the limit is never exceeded, else by no more than
            the calls under way turn out dearer than any before. Until one has told its cost they go one by
            one.
        limit_group: Shares ``max_in_flight``, ``per_second`` and budget with all predicates and lookups of
            this process that name the same one, in all its queries; they have to give the same limits.

    Raises:
        MillraceError: A setting is out of range or does not go with the kind or the function.
    """
    return make(
        function,
        kind=kind,
        name=name,
        deterministic=deterministic,
        on_error=on_error,
        batch=batch,
        retries=retries,
        timeout=timeout,
        answers=answers,
        max_in_flight=max_in_flight,
        per_second=per_second,
        dedupe=dedupe,
        max_requests=max_requests,
        max_cost=max_cost,
        cost=cost,
        limit_group=limit_group,
    )


def cascade(
    score: Callable[..., Any],
    costly: object,
    *,
    recall: float = 0.95,
    precision: float = 0.95,
    confidence: float = 0.95,
    kind: ScoreKind = "row",
) -> Cascade:
    """Put a cheap score before a costly predicate, which then decides only where the score is not sure.

    Thresholds are learned on a sample that both judge, and keep their promises with the stated confidence
    whatever the scores are like. Rows between them get the costly predicate's own answer.

    >>> cheap = millrace.cascade(length_of, is_complaint, recall=0.95)  # doctest: +SKIP
    >>> fitted = cheap.learn(reviews, "text", sample=1000)  # doctest: +SKIP
    >>> millrace.where(reviews, *fitted("text"))  # doctest: +SKIP

    Args:
        score: From a row's values to a number, the higher the likelier that the costly predicate keeps it. A
            null or NaN leaves the row to the costly predicate.
        costly: A function made by :func:`predicate` or by PySpark's ``udf``, ``pandas_udf`` or ``arrow_udf``.
        recall: Share of the rows that the costly predicate keeps which are to be kept, at least.
        precision: Share of the kept rows that the costly predicate keeps, at least.
        confidence: Probability with which both hold, over the samples that might have been drawn.
        kind: How the score is called: ``"row"``, ``"pandas"`` or ``"arrow"``, as for :func:`predicate`.

    Raises:
        MillraceError: The costly predicate is none; a share is out of range when thresholds are learned.
    """
    return Cascade(Score(score, kind), Predicate.of(costly), recall, precision, confidence)
