"""A call of a predicate on some rows: what its function is given, and what came of it."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

REJECTED, KEPT, RAISED = 0, 1, 2
"""Codes of ``Outcome.truth``; null counts as rejected."""

_OURS = ("millrace.predicates", "millrace.limits", "tenacity", "concurrent.futures")


@dataclass(frozen=True)
class Values:
    """Turns Arrow columns into arguments, as Arrow does; Spark has conversions of its own.

    Frozen and picklable, for it travels to the tasks.
    """

    def objects(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return the values of each column as Python objects."""
        return [column.to_pylist() for column in columns]

    def series(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return one pandas Series (or DataFrame, for a struct) a column."""
        return [column.to_pandas() for column in columns]

    def arrays(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the arrays as the function expects them."""
        return list(columns)


@dataclass(frozen=True)
class Failure:
    """An exception that a predicate raised, as text, since not every exception pickles.

    Attributes:
        kind: Name of its class.
        message: Its own text.
        traceback: The original traceback, ready to print.
    """

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception, with its traceback from the user's function on."""
        inner = error.__traceback__
        while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
            inner = inner.tb_next
        text = "".join(traceback.format_exception(type(error), error, inner or error.__traceback__))
        return cls(type(error).__name__, str(error), text)


@dataclass(frozen=True)
class Outcome:
    """The truth of a predicate for some rows.

    Attributes:
        truth: ``int8`` of shape ``(n,)``: ``KEPT``, ``REJECTED`` (also for null) or ``RAISED``.
        calls: Rows that the function was called for, counting repeated ones each time.
        failures: By position, what was raised there. A call over several rows that raises leaves
            all its rows ``RAISED`` without a failure: which of them is to blame is not known.
    """

    truth: np.ndarray[Any, np.dtype[np.int8]]
    calls: int
    failures: dict[int, Failure] = field(default_factory=dict)

    @classmethod
    def in_doubt(cls, error: BaseException, rows: int) -> Outcome:
        """Return what is known if arguments cannot be made: which of several rows is to blame is not."""
        failures = {0: Failure.of(error)} if rows == 1 else {}
        return cls(np.full(rows, RAISED, np.int8), 0, failures)


class Caller(Protocol):
    """Calls one predicate; made inside the task, and kept for all of the task."""

    def call(self, columns: list[pa.Array]) -> Outcome:
        """Return the truth for every row of the argument columns (one array an argument).

        Raises:
            PredicateError: The function returned what is no truth value, or too many or too few.
        """

    def close(self) -> None:
        """Let go of connections, event loops and generators."""
