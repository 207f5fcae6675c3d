"""The predicates that users hold: Python functions that know how they are called, and their calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

from pyspark import cloudpickle
from pyspark.sql import Column, functions as sf
from pyspark.sql.types import BooleanType, DataType
from pyspark.util import PythonEvalType

from millrace.errors import PredicateError
from millrace.limits.policy import LimitOptions, check_options, settings_of
from millrace.predicates import PredicateSpec
from millrace.predicates.spec import Kind
from millrace.predicates.truth import Truths
from millrace.spark import values as conversions

_KINDS: dict[int, tuple[Kind, Truths]] = {
    PythonEvalType.SQL_BATCHED_UDF: ("row", conversions.truth_of_pickled),
    PythonEvalType.SQL_ARROW_BATCHED_UDF: ("row", conversions.truth_of_rows),
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: ("pandas", conversions.truth_of_series),
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: ("pandas_iter", conversions.truth_of_next_series),
    PythonEvalType.SQL_SCALAR_ARROW_UDF: ("arrow", conversions.truth_of_array),
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: ("arrow_iter", conversions.truth_of_next_array),
}
"""How functions of each of PySpark's evaluation types are called, and what Spark makes of their results."""

Argument = Column | str


@dataclass(frozen=True)
class Predicate:
    """A predicate that can be applied to columns; to ``columns`` where no others are given.

    ``made`` is PySpark's function object that it was made of, if any.
    """

    spec: PredicateSpec
    made: Any = None
    columns: tuple[str, ...] = ()

    def __call__(self, *arguments: Argument, **named: Argument) -> Applied:
        """Return the predicate applied to columns, given as Columns or by name.

        PredicateError if the function takes other arguments.
        """
        return Applied.of(self.spec, arguments if arguments or named else self.columns, named)

    @property
    def name(self) -> str:
        """What reports and errors call it, and its name in SQL unless another is given there."""
        return self.spec.name

    @classmethod
    def of(cls, function: object, name: str | None = None) -> Predicate:
        """Return a predicate made of one, or of PySpark's ``udf``, ``pandas_udf`` or ``arrow_udf``.

        PredicateError if it is something else, or does not return booleans.
        """
        if isinstance(function, Predicate):
            if name in (None, function.name):
                return function
            return replace(function, spec=replace(function.spec, name=name))
        if not hasattr(function, "evalType") or not hasattr(function, "func"):
            hint = " (apply @millrace.predicate to it)" if callable(function) else ""
            raise PredicateError(
                f"{function!r} is no predicate{hint}: expected what @millrace.predicate, udf, pandas_udf or "
                "arrow_udf returns"
            )
        label = getattr(function, "__name__", None) or getattr(function.func, "__name__", "predicate")
        label = str(name or label)
        if function.evalType not in _KINDS:
            raise PredicateError(
                f"{label!r} is not a function of single rows (evaluation type {function.evalType}): expected "
                "a scalar udf, pandas_udf or arrow_udf"
            )
        returns: DataType | str = function.returnType  # type: ignore[attr-defined]
        if not isinstance(returns, BooleanType) and returns not in ("boolean", "bool"):
            shown = returns if isinstance(returns, str) else returns.simpleString()
            raise PredicateError(
                f"{label!r} returns {shown}, expected boolean: declare it with returnType='boolean', or "
                "compare its result in Spark"
            )
        kind, truths = _KINDS[function.evalType]
        deterministic = bool(getattr(function, "deterministic", True))
        return cls(PredicateSpec(label, function.func, kind, deterministic, truths=truths), function)


@dataclass(frozen=True)
class Applied:
    """A predicate with the columns it reads, and what messages call these."""

    spec: PredicateSpec
    arguments: tuple[Argument, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, spec: PredicateSpec, arguments: tuple[Argument, ...], named: dict[str, Argument]) -> Applied:
        """Check the arguments against the function's signature; PredicateError if they do not fit."""
        for argument in (*arguments, *named.values()):
            if not isinstance(argument, str | Column):
                raise PredicateError(
                    f"predicate {spec.name!r} is applied to {argument!r}: expected columns or their names "
                    "(for a constant, use pyspark.sql.functions.lit)"
                )
        if not arguments and not named:
            raise PredicateError(
                f"predicate {spec.name!r} is applied to no column: it could only be constant"
            )
        check_arity(spec, len(arguments), tuple(named))
        values, signature = (*arguments, *named.values()), _signature(spec)
        if named:
            spec = _with_names(spec, len(arguments), tuple(named))
        known = [] if signature is None else list(signature.parameters)[: len(arguments)]
        unknown = [f"argument {place + 1}" for place in range(len(known), len(arguments))]
        names = (*known, *unknown, *named)
        labels = tuple(v if isinstance(v, str) else name for v, name in zip(values, names, strict=True))
        return cls(spec, values, labels)

    def columns(self) -> list[Column]:
        return [sf.col(argument) if isinstance(argument, str) else argument for argument in self.arguments]


def check_arity(spec: PredicateSpec, positional: int, named: tuple[str, ...] = ()) -> None:
    """Raise PredicateError unless the function can be called with so many arguments."""
    signature = _signature(spec)
    if signature is None:
        return
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(named))
    except TypeError as error:
        count = positional + len(named)
        raise PredicateError(
            f"predicate {spec.name!r} takes {spec.name}{signature}, "
            f"got {count} argument{'s' * (count != 1)}: {error}"
        ) from None


def _signature(spec: PredicateSpec) -> inspect.Signature | None:
    """Return what a predicate's function takes, None for any number of columns or if it does not tell."""
    if spec.kind in ("pandas_iter", "arrow_iter"):
        return None  # one iterator, whatever the number of columns
    try:
        return inspect.signature(spec.function)
    except (TypeError, ValueError):
        return None  # a builtin


def check_sendable(spec: PredicateSpec) -> None:
    """Raise PredicateError unless the predicate pickles, so that it can travel to the tasks."""
    try:
        cloudpickle.dumps(spec.function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise PredicateError(
            f"predicate {spec.name!r} cannot be sent to Spark's tasks: {error}. It refers to something that "
            "does not pickle (a connection, a lock, a session): make that inside the function"
        ) from error


def predicate(
    function: Callable[..., Any] | None = None,
    *,
    kind: Kind = "row",
    name: str | None = None,
    deterministic: bool = True,
    on_error: Literal["fail", "null"] = "fail",
    answers: str | Path | None = None,
    dedupe: bool = False,
    cost: float | Callable[[Any, Any], float] | None = None,
    **limits: Unpack[LimitOptions],
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
        answers: A folder, or a file that ends in ``.sqlite``, on this machine, where answers outlive the
            job: the same job tomorrow, or once more after it failed, asks only for what is missing. They
            count for equal arguments and the same function: its code, what it has captured, what it names.
            Implies ``dedupe``; ``async`` only.
        dedupe: Ask once per job for equal arguments; ``async`` only.
        cost: What a call costs: a number, or a function of its arguments (a tuple; with ``batch`` a list of
            them) and what it returned; ``async`` only.
        limits: See :class:`millrace.LimitOptions`; there are none where nothing is said. All
            but ``retries`` and ``batch`` are for ``async`` only.

    Raises:
        MillraceError: A setting is out of range or does not go with the kind or the function.
    """
    check_options("millrace.predicate", limits, settings_of(predicate, LimitOptions))

    def make(target: Callable[..., Any]) -> Predicate:
        label = str(name or getattr(target, "__name__", type(target).__name__))
        path: Any = answers  # the spec makes a path of it, or says what is wrong
        spec = PredicateSpec(
            label, target, kind, deterministic, on_error, dedupe, answers=path, cost=cost, **limits
        )
        return Predicate(spec)

    return make if function is None else make(function)


def _with_names(spec: PredicateSpec, positional: int, named: tuple[str, ...]) -> PredicateSpec:
    """Return the predicate with a function that takes the named arguments after the positional ones."""
    function = spec.function
    change = f"arguments from {positional} on are {', '.join(named)}"

    def called(*values: Any) -> Any:
        return function(*values[:positional], **dict(zip(named, values[positional:], strict=True)))

    async def awaited(*values: Any) -> Any:
        return await called(*values)

    return spec.through(awaited if spec.kind == "async" else called, change)
