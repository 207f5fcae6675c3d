"""The caller's predicates as functions of the session, so that Spark reads and runs every query.

Spark analyses a query with them as it is written, and calls them wherever no eddy does. They stand in the
session under names that nobody else uses, and the query's text is bound to these: two queries side by side
may call two functions by one name. Filters that eddies run are such functions too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import SparkSession

from millrace.errors import PredicateError, QueryError
from millrace.options import Options
from millrace.spark.mask import Mask, Slot
from millrace.spark.predicates import Predicate, check_sendable
from millrace.spark.session import facts_of, is_connect

Predicates = Mapping[str, object] | Iterable[object]

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = "__millrace"
_OURS = re.compile(rf"{_RESERVED}_\d+_")
_numbers = itertools.count()


def restored(text: str) -> str:
    """Return a text of Spark's with the caller's names in the place of ours."""
    return _OURS.sub("", text)


def by_name(predicates: Predicates | None) -> dict[str, Predicate]:
    """Return the caller's predicates by lower-case name: SQL compares names without case."""
    if predicates is None:
        return {}
    if isinstance(predicates, str | Predicate) or not isinstance(predicates, Mapping | Iterable):
        raise PredicateError(
            f"predicates are given as {type(predicates).__name__}: expected {{name: predicate}}, or a list "
            "of predicates"
        )
    if isinstance(predicates, Mapping):
        named = [Predicate.of(function, _check_name(name)) for name, function in predicates.items()]
    else:
        named = [Predicate.of(function) for function in predicates]
    result: dict[str, Predicate] = {}
    for predicate in named:
        key = _check_name(predicate.name).lower()
        if key in result:
            raise QueryError(
                f"two predicates are named {result[key].name!r} and {predicate.name!r}, which SQL does not "
                "tell apart: give them different names, as {name: predicate}"
            )
        result[key] = predicate
    return result


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise QueryError(
            f"a predicate is named {name!r}, which cannot be called in SQL: expected letters, digits and "
            "underscores, such as {'is_spam': predicate}"
        )
    if name.lower().startswith(_RESERVED):
        raise QueryError(f"a predicate is named {name!r}: names that begin with {_RESERVED} are taken")
    return name


class Functions:
    """What one query needs of the session's temporary functions: all of the caller's predicates.

    Attributes:
        names: What each is called in the session, by lower-case name.
        masks: Per ``async`` predicate, the filter that Spark calls where no eddy of ours does.
    """

    def __init__(self, spark: SparkSession, options: Options, predicates: Mapping[str, Predicate]) -> None:
        self._spark = spark
        self._options = options
        self._registered: list[str] = []
        self.names: dict[str, str] = {}
        self.masks: dict[str, Mask] = {}
        try:
            for key, predicate in predicates.items():
                self.names[key] = self._register(key, predicate)
        except BaseException:
            self.close()
            raise

    def _register(self, key: str, predicate: Predicate) -> str:
        spec = predicate.spec
        registered = facts_of(self._spark).functions if is_connect(self._spark) else {}
        owner = spec if predicate.made is None else predicate.made
        if (id(owner), predicate.name) in registered:
            return registered[id(owner), predicate.name][1]
        check_sendable(spec)
        from millrace.spark.plain import certain, plain_function  # here, for it loads pandas

        name = f"{_RESERVED}_{next(_numbers)}_{predicate.name}"
        if spec.kind == "async":
            self.masks[key] = Mask.of(self._spark, [Slot(certain(spec))], self._options)
            function = self.masks[key].function
        else:
            function = plain_function(predicate)
            registered[id(owner), predicate.name] = (owner, name)  # kept, so that its id is
        self._spark.udf.register(name, function)
        self._registered.append(name)
        return name

    def filter(self, name: str, slots: Sequence[Slot], labels: Sequence[str]) -> Mask:
        """Register an eddy over predicates, in the order as written; see :func:`filter_name`.

        ``labels`` are the function's arguments, for errors and reports.
        """
        filter_ = Mask.of(self._spark, slots, self._options, labels)
        self._spark.udf.register(name, filter_.function)
        self._registered.append(name)
        return filter_

    def close(self) -> None:
        """Take the names out of the session again: analysed queries keep the functions."""
        if is_connect(self._spark):
            return
        for name in self._registered:
            self._spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
        self._registered.clear()


def filter_name() -> str:
    """Return a name for a filter that nobody has."""
    return f"{_RESERVED}_{next(_numbers)}_where"
