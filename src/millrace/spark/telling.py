"""DataFrames that fail with Millrace's own errors.

What a task raises reaches the caller of an action as an exception of Spark's, so ``except MillraceError``
would miss it. The DataFrames that Millrace returns are of a class derived from their own, whose methods raise
what the task raised; and so is whatever is derived from them: DataFrames, groups, writers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pyspark.sql import DataFrame

from millrace.spark.actions import ACTIONS, Action, acted, carried, carry
from millrace.spark.failures import translated

_TELLING = "_millrace_telling"
# What a method of a DataFrame gives that has actions of its own, or leads to more of these.
_KINDS = (
    "DataFrame", "GroupedData", "DataFrameWriter", "DataFrameWriterV2", "MergeIntoWriter",
    "DataFrameNaFunctions", "DataFrameStatFunctions",
)  # fmt: skip
_PROPERTIES = ("write", "na", "stat")
_LAZY = ("toLocalIterator",)
"""Actions that begin with the first row that is asked for."""


def telling(frame: DataFrame) -> DataFrame:
    """Make a DataFrame one whose actions raise Millrace's errors; returns it."""
    _tell(frame)
    return frame


def _tell(made: Any) -> None:
    kind: Any = type(made)
    if not hasattr(kind, _TELLING):
        made.__class__ = _derived(kind)


@functools.cache
def _derived(kind: type[Any]) -> type[Any]:
    """Return a class that differs in the errors of its methods only, and shows itself as its base."""
    own: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__, _TELLING: True}
    actions = ACTIONS.get(kind.__name__, frozenset())
    for name in dir(kind):
        member = getattr(kind, name)
        if (not name.startswith("_") or name == "__getitem__") and callable(member):
            own[name] = _told(member, name if name in actions else None)
        elif name in _PROPERTIES:
            own[name] = property(_told(member.fget), doc=member.__doc__)
    return type(kind.__name__, (kind,), own)


def _told(method: Callable[..., Any], action: str | None = None) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **named: Any) -> Any:
        acting = None if action is None or action in _LAZY else Action(action, args[0])
        try:
            result = method(*args, **named)
        except BaseException as error:  # noqa: BLE001  # told or raised again
            ours = translated(error) if isinstance(error, Exception) else error
            if acting is not None:
                acting.end(ours)
            _raise(error, ours)
        if acting is not None:
            acting.end()
        kind = type(result)
        if kind.__name__ in _KINDS and kind.__module__.startswith("pyspark.sql."):
            _tell(result)
            carry(result, carried(*args, *named.values()))
        if isinstance(result, Iterator):
            return _each(result) if action is None else acted(action, args[0], _each(result))
        return result

    return called


def _each(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except Exception as error:  # noqa: BLE001  # told or raised again
        _raise(error, translated(error))


def _raise(error: BaseException, ours: BaseException) -> NoReturn:
    if ours is error:
        raise error
    raise ours from None  # what Spark raised is its context, which a traceback need not show
