"""The caller's predicates as functions of the session, so that Spark reads and runs every query.

Spark analyses a query with them as it is written, and calls them wherever no eddy does. They stand in the
session under names that nobody else uses, and the query's text is bound to these: two queries side by side
may call two functions by one name. Filters that eddies run are such functions too.

Where only Spark evaluates a predicate, null is not false: ``NOT p(x)``, ``p(x) IS NULL`` and a SELECT list
tell them apart, but an eddy does not, for it only has to know which rows stay. So there a predicate is what a
user would have registered, with its own settings: a function of rows, of pandas or of Arrow columns that
gives true, false or null. Only coroutines need the eddy's machinery; they may not give null.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import arrow_udf, pandas_udf

from millrace.errors import PredicateError, QueryError
from millrace.options import Options
from millrace.predicates import PredicateSpec
from millrace.predicates.retries import retried
from millrace.predicates.truth import truth_of
from millrace.spark.parallelism import is_connect
from millrace.spark.predicates import Predicate, check_sendable
from millrace.spark.where import Mask, Slot, mask

Predicates = Mapping[str, object] | Iterable[object]

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = "__millrace"
_OURS = re.compile(rf"{_RESERVED}_\d+_")
_numbers = itertools.count()
# Spark Connect analyses a query anew for each action, so there the names have to stay: per session, one for
# each predicate that was ever used.
_kept: WeakKeyDictionary[SparkSession, dict[int, tuple[PredicateSpec, str]]] = WeakKeyDictionary()


def restored(text: str) -> str:
    """Return a text of Spark's with the caller's names in the place of ours."""
    return _OURS.sub("", text)


def by_name(predicates: Predicates | None) -> dict[str, Predicate]:
    """Return the caller's predicates by lower-case name: SQL compares names without case.

    Raises:
        PredicateError: One is no predicate, or they come as something else than a mapping or several.
        QueryError: A name cannot stand in a query, or two are the same.
    """
    if predicates is None:
        return {}
    if isinstance(predicates, str | Predicate) or not isinstance(predicates, Mapping | Iterable):
        raise PredicateError(
            f"predicates are given as {type(predicates).__name__}: expected {{name: predicate}}, or a list "
            "of predicates"
        )
    if isinstance(predicates, Mapping):
        made = [Predicate.of(given, _checked(name)) for name, given in predicates.items()]
    else:
        made = [Predicate.of(given) for given in predicates]
    result: dict[str, Predicate] = {}
    for predicate in made:
        key = _checked(predicate.name).lower()
        if key in result:
            raise QueryError(
                f"two predicates are named {result[key].name!r} and {predicate.name!r}, which SQL does not "
                "tell apart: give them different names, as {name: predicate}"
            )
        result[key] = predicate
    return result


def _checked(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise QueryError(
            f"a predicate is named {name!r}, which cannot be called in SQL: expected letters, digits and "
            "underscores, such as {'is_spam': predicate}"
        )
    if name.lower().startswith(_RESERVED):
        raise QueryError(f"a predicate is named {name!r}: names that begin with {_RESERVED} are taken")
    return name


class Functions:
    """What one query needs of the session's temporary functions.

    Args:
        spark: The session.
        options: Settings of the run.
        predicates: The caller's, by lower-case name; all are registered.

    Attributes:
        names: What each is called in the session.
        masks: Per ``async`` predicate, the filter that Spark calls where no eddy of ours does.

    Raises:
        PredicateError: A predicate cannot be sent to the tasks.
    """

    def __init__(self, spark: SparkSession, options: Options, predicates: Mapping[str, Predicate]) -> None:
        self._spark = spark
        self._options = options
        self._made: list[str] = []
        self.names: dict[str, str] = {}
        self.masks: dict[str, Mask] = {}
        for key, predicate in predicates.items():
            self.names[key] = self._register(key, predicate)

    def _register(self, key: str, predicate: Predicate) -> str:
        spec = predicate.spec
        known = _kept.setdefault(self._spark, {}) if is_connect(self._spark) else {}
        if id(spec) in known:
            return known[id(spec)][1]
        check_sendable(spec)
        name = f"{_RESERVED}_{next(_numbers)}_{predicate.name}"
        if spec.kind == "async":
            self.masks[key] = mask(self._spark, [Slot(certain(spec))], self._options)
            function = self.masks[key].function
        else:
            function = plain_function(spec)
            known[id(spec)] = (spec, name)
        self._spark.udf.register(name, function)
        self._made.append(name)
        return name

    def filter(self, name: str, slots: Sequence[Slot], labels: Sequence[str]) -> Mask:
        """Register an eddy over predicates under a name; see :func:`filter_name`.

        Args:
            name: The function's.
            slots: The predicates in the order as written.
            labels: The function's arguments, for errors and reports.
        """
        made = mask(self._spark, slots, self._options, labels)
        self._spark.udf.register(name, made.function)
        self._made.append(name)
        return made

    def close(self) -> None:
        """Take the names out of the session again: analysed queries keep the functions."""
        if is_connect(self._spark):
            return
        for name in self._made:
            self._spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
        self._made.clear()


def filter_name() -> str:
    """Return a name for a filter that nobody has."""
    return f"{_RESERVED}_{next(_numbers)}_where"


Function = Callable[..., Any]
Batch = TypeVar("Batch")


def plain_function(spec: PredicateSpec) -> Any:
    """Return a predicate, of any kind but ``async``, as PySpark's function object.

    It gives true, false or null. Errors of the predicate's function fail the query, or are null with
    ``on_error="null"``.
    """
    # Their stubs ask for the kind of function, which here the function's annotations say.
    of_pandas: Any = pandas_udf
    of_arrow: Any = arrow_udf
    match spec.kind:
        case "pandas":
            made = of_pandas(_series(spec), "boolean")
        case "pandas_iter":
            made = of_pandas(_series_batches(spec), "boolean")
        case "arrow":
            made = of_arrow(_arrays(spec), "boolean")
        case "arrow_iter":
            made = of_arrow(_array_batches(spec), "boolean")
        case _:
            made = udf(_rows(spec), "boolean")
    return made if spec.deterministic else made.asNondeterministic()


def certain(spec: PredicateSpec) -> PredicateSpec:
    """Return an ``async`` predicate for which null is an error, for the eddy to call it anywhere.

    An eddy takes null as false, which only WHERE does too.
    """
    function, name, batched = spec.function, spec.name, spec.batch is not None

    async def known(*values: Any) -> Any:
        result = await function(*values)
        if result is None or (batched and any(each is None for each in result)):
            raise PredicateError(
                f"async predicate {name!r} returned None, where it stands inside an expression: there it has "
                "to return True or False; only a condition of its own in WHERE takes None as false"
            )
        return result

    return replace(spec, function=known, on_error="fail")


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

    def one(columns: Sequence[Any]) -> Any:
        result = function(*columns)
        return result if isinstance(result, pd.Series) else pd.Series(result, dtype=object)

    def missing() -> Any:
        return pd.Series([None], dtype=object)

    def series(*columns: pd.Series) -> pd.Series:
        pieces = _pieces(spec, one, missing, lambda c, low, size: c.iloc[low : low + size], columns)
        return pieces[0] if len(pieces) == 1 else pd.concat(pieces, ignore_index=True)

    return series


def _arrays(spec: PredicateSpec) -> Function:
    function = retried(spec)

    def one(columns: Sequence[Any]) -> Any:
        result = function(*columns)
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        return result.cast(pa.bool_()) if isinstance(result, pa.Array) else pa.array(result, pa.bool_())

    def missing() -> Any:
        return pa.nulls(1, pa.bool_())

    def arrays(*columns: pa.Array) -> pa.Array:
        pieces = _pieces(spec, one, missing, lambda c, low, size: c.slice(low, size), columns)
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    return arrays


def _pieces(
    spec: PredicateSpec,
    one: Callable[[Sequence[Any]], Batch],
    missing: Callable[[], Batch],
    cut: Callable[[Any, int, int], Any],
    columns: Sequence[Any],
) -> list[Batch]:
    """Return the truths of a batch in pieces; with ``on_error="null"`` halving finds what raises.

    Args:
        spec: The predicate.
        one: Calls it.
        missing: Makes one null.
        cut: Returns so many rows of a column from a position on.
        columns: The arguments, at least one.
    """
    rows = len(columns[0])
    size = spec.batch or max(1, rows)

    def ask(part: Sequence[Any], count: int) -> list[Batch]:
        try:
            result = one(part)
        except PredicateError:
            raise
        except Exception:
            if spec.on_error == "fail":
                raise
            if count <= 1:
                return [cut(missing(), 0, count)]
            half = count // 2
            left, right = [cut(c, 0, half) for c in part], [cut(c, half, count - half) for c in part]
            return ask(left, half) + ask(right, count - half)
        given = len(result)  # type: ignore[arg-type]
        if given != count:
            raise PredicateError(
                f"predicate {spec.name!r} returned {given} truth values for {count} rows: expected one a row"
            )
        return [result]

    found: list[Batch] = []
    for low in range(0, max(1, rows), size):
        count = min(size, rows - low)
        found += ask([cut(c, low, count) for c in columns], count)
    return found


def _series_batches(spec: PredicateSpec) -> Function:
    function = spec.function

    def series(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        return function(batches)  # type: ignore[no-any-return]

    return series


def _array_batches(spec: PredicateSpec) -> Function:
    function = spec.function

    def arrays(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return function(batches)  # type: ignore[no-any-return]

    return arrays
