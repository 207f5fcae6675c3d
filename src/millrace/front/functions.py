"""The caller's predicates as functions of the session, so that Spark reads and runs every query.

Spark analyses a query with them as it is written, and calls them wherever no eddy does. Filters that
eddies run are functions too, under names that nobody else uses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from millrace.errors import InputError, PredicateError, QueryError
from millrace.front.plain import certain, plain_function
from millrace.options import Options
from millrace.spark.parallelism import is_connect
from millrace.spark.predicates import Predicate, check_sendable
from millrace.spark.where import Mask, Slot, mask

Predicates = Mapping[str, object] | Iterable[object]

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RESERVED = "__millrace"
_numbers = itertools.count()
_ours: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


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

    The caller's names stay in the session, for the next query to replace. On Spark Connect, which
    analyses a query anew for each action, an earlier DataFrame that calls one outside of WHERE then
    calls the new one.

    Args:
        spark: The session.
        options: Settings of the run.
        predicates: The caller's, by lower-case name; all are registered.

    Attributes:
        masks: Per ``async`` predicate, the filter that Spark calls where no eddy of ours does.

    Raises:
        InputError: A name is that of a function which the session has already.
        PredicateError: A predicate cannot be sent to the tasks.
    """

    def __init__(self, spark: SparkSession, options: Options, predicates: Mapping[str, Predicate]) -> None:
        self._spark = spark
        self._options = options
        self._made: list[str] = []
        self.masks: dict[str, Mask] = {}
        ours = _ours.setdefault(spark, set()) if predicates else set()
        for key, predicate in predicates.items():
            if key not in ours and spark.catalog.functionExists(key):
                raise InputError(
                    f"the session has a function named {predicate.name!r} already: give the predicate "
                    "another name, or drop that function"
                )
        for key, predicate in predicates.items():
            check_sendable(predicate.spec)
            ours.add(key)
            spark.udf.register(predicate.name, self._anywhere(key, predicate))

    def _anywhere(self, key: str, predicate: Predicate) -> Any:
        """Return the predicate as a function that may stand in any expression."""
        if predicate.spec.kind != "async":
            return plain_function(predicate.spec)
        self.masks[key] = mask(self._spark, [Slot(certain(predicate.spec))], self._options)
        return self.masks[key].function

    def filter(self, slots: Sequence[Slot], labels: Sequence[str]) -> tuple[str, Mask]:
        """Register an eddy over predicates; return the function's name and the filter.

        Args:
            slots: The predicates in the order as written.
            labels: The function's arguments, for errors and reports.
        """
        name = f"{_RESERVED}_where_{next(_numbers)}"
        made = mask(self._spark, slots, self._options, labels)
        self._spark.udf.register(name, made.function)
        self._made.append(name)
        return name, made

    def close(self) -> None:
        """Take the filters' names out of the session again: analysed queries keep the functions.

        Spark Connect analyses a query anew for each action, so there the names have to stay.
        """
        if is_connect(self._spark):
            return
        for name in self._made:
            self._spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")
        self._made.clear()
