"""Predicates as functions that Spark calls itself, where no eddy does.

There null is not false: ``NOT p(x)``, ``p(x) IS NULL`` and a SELECT list tell them apart, but an eddy does
not, for it only has to know which rows stay. So a predicate is what a user would have registered, with the
predicate's settings. It is PySpark's own function as it was given, or one of rows, of pandas or of Arrow
columns that gives true, false or null. Only coroutines need the eddy's machinery; they may not give null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import arrow_udf, pandas_udf

from millrace.errors import PredicateError
from millrace.predicates import PredicateSpec
from millrace.predicates.spec import retried
from millrace.predicates.truth import truth_of
from millrace.spark.predicates import Predicate

Function = Callable[..., Any]


def plain_function(predicate: Predicate) -> Any:
    """Return a predicate, of any kind but ``async``, as PySpark's function object.

    It gives true, false or null. Errors of the predicate's function fail the query, or are null with
    ``on_error="null"``.
    """
    if predicate.made is not None:
        return predicate.made
    spec = predicate.spec
    # Their stubs ask for the kind of function, which here the function's annotations say.
    makers: dict[str, tuple[Any, Any]] = {"pandas": (pandas_udf, _series), "arrow": (arrow_udf, _arrays)}
    make, wrap = makers.get(spec.kind, (udf, _rows))
    function = make(wrap(spec), "boolean")
    return function if spec.deterministic else function.asNondeterministic()


def certain(spec: PredicateSpec) -> PredicateSpec:
    """Return an ``async`` predicate for which null is an error; an eddy, like WHERE, takes it as false."""
    function, name, batched = spec.function, spec.name, spec.batch is not None

    async def checked(*values: Any) -> Any:
        result = await function(*values)
        if result is None or (batched and any(truth is None for truth in result)):
            raise PredicateError(
                f"async predicate {name!r} returned None, where it stands inside an expression: there it has "
                "to return True or False; only a condition of its own in WHERE takes None as false"
            )
        return result

    return replace(spec.through(checked, "null is an error"), on_error="fail")


def _rows(spec: PredicateSpec) -> Function:
    function, name, forgiving = retried(spec), spec.name, spec.on_error == "null"

    def row(*values: Any) -> bool | None:
        try:
            result = function(*values)
        except Exception:
            if forgiving:
                return None
            raise
        return None if result is None else bool(truth_of(result, name))

    return row


def _series(spec: PredicateSpec) -> Function:
    function = retried(spec)

    def convert(result: Any) -> Any:
        return result if isinstance(result, pd.Series) else pd.Series(result, dtype=object)

    def series(*columns: pd.Series) -> pd.Series:
        pieces = _pieces(spec, function, convert, columns)
        return pieces[0] if len(pieces) == 1 else pd.concat(pieces, ignore_index=True)

    return series


def _arrays(spec: PredicateSpec) -> Function:
    function = retried(spec)

    def convert(result: Any) -> Any:
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        return result.cast(pa.bool_()) if isinstance(result, pa.Array) else pa.array(result, pa.bool_())

    def arrays(*columns: pa.Array) -> pa.Array:
        pieces = _pieces(spec, function, convert, columns)
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    return arrays


def _pieces(
    spec: PredicateSpec, function: Function, convert: Callable[[Any], Any], columns: Sequence[Any]
) -> list[Any]:
    """Return the truths of a batch in pieces; with ``on_error="null"`` halving finds what raises."""
    rows = len(columns[0])
    size = spec.batch or max(1, rows)

    def ask(part: Sequence[Any], count: int) -> list[Any]:
        try:
            result = convert(function(*part))
        except PredicateError:
            raise
        except Exception:
            if spec.on_error == "fail":
                raise
            if count <= 1:
                return [convert([None] * count)]
            half = count // 2
            return ask([c[:half] for c in part], half) + ask([c[half:] for c in part], count - half)
        if len(result) != count:
            raise PredicateError(
                f"predicate {spec.name!r} returned {len(result)} truth values for {count} rows: expected one "
                "a row"
            )
        return [result]

    pieces: list[Any] = []
    for low in range(0, max(1, rows), size):
        pieces += ask([c[low : low + size] for c in columns], min(size, rows - low))
    return pieces
