"""DataFrames that fail with Millrace's own errors.

What a task raises reaches the caller of an action as an exception of Spark's, so ``except MillraceError``
would miss it. The DataFrames that Millrace returns are of a class derived from their own, whose actions raise
what the task raised. Those derived from them are plain ones again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pyspark.sql import DataFrame

from millrace.spark.failures import translated

_ACTIONS = (
    "collect", "count", "take", "head", "first", "tail", "show", "isEmpty", "toLocalIterator", "toPandas",
    "toArrow", "foreach", "foreachPartition", "checkpoint", "localCheckpoint",
)  # fmt: skip
_WRITES = ("save", "saveAsTable", "insertInto", "parquet", "csv", "json", "orc", "text", "jdbc")


def telling(frame: DataFrame) -> DataFrame:
    """Make a DataFrame one whose actions raise Millrace's errors; returns it."""
    kind: Any = type(frame)
    frame.__class__ = _with_actions(kind)
    return frame


@functools.cache
def _with_actions(base: Any) -> type[Any]:
    def write(frame: Any) -> Any:
        writer = super(made, frame).write
        kind: Any = type(writer)
        writer.__class__ = _with_writes(kind)
        return writer

    made = _derived(base, _ACTIONS, {"write": property(write, doc=base.write.__doc__)})
    return made


@functools.cache
def _with_writes(kind: Any) -> type[Any]:
    return _derived(kind, _WRITES, {})


def _derived(kind: type[Any], names: tuple[str, ...], others: dict[str, Any]) -> type[Any]:
    """Return a class that differs in the errors of some methods only, and shows itself as its base."""
    methods = {name: _told(getattr(kind, name)) for name in names if hasattr(kind, name)}
    told = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), told | methods | others)


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **named: Any) -> Any:
        try:
            result = method(*args, **named)
        except Exception as error:  # noqa: BLE001  # told or raised again
            _raise(error)
        return _each(result) if isinstance(result, Iterator) else result

    return called


def _each(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except Exception as error:  # noqa: BLE001  # told or raised again
        _raise(error)


def _raise(error: Exception) -> NoReturn:
    ours = translated(error)
    if ours is error:
        raise error
    raise ours from None  # what Spark raised is its context, which a traceback need not show
