"""What is known of the DataFrames that Millrace returned, for ``explain`` and ``report``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from millrace.errors import InputError
from millrace.run_report import RunReport

if TYPE_CHECKING:
    from millrace.limits import LookupProgress


class Handle(Protocol):
    """A DataFrame's own account."""

    def explain(self) -> str:
        """Return what runs, as text."""

    def report(self) -> RunReport:
        """Return the figures of the latest run."""


class QueryHandle(Handle, Protocol):
    """The account of a query's DataFrame."""

    def stream_results(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """Run it and yield its rows as they come."""

    def lookups(self) -> list[LookupProgress]:
        """Return how far its lookups are."""

    def failed_keys(self) -> pa.Table:
        """Return the keys that could not be looked up."""


_HANDLE = "_millrace_handle"


def remember(frame: DataFrame, handle: Handle) -> DataFrame:
    """Put a handle on its DataFrame, to live as long; returns the DataFrame."""
    setattr(frame, _HANDLE, handle)
    return frame


def handle_of(frame: DataFrame) -> Handle:
    """Return a DataFrame's handle.

    Raises:
        InputError: Millrace did not return this very DataFrame.
    """
    found: Handle | None = getattr(frame, "__dict__", {}).get(_HANDLE)
    if found is None:
        raise InputError(
            "nothing is known of this DataFrame: expected the very one that millrace.where, millrace.sql or "
            "millrace.join returned, not one derived from it"
        )
    return found


def known_query(frame: DataFrame) -> QueryHandle | None:
    """Return the handle of a query's DataFrame, None for any other DataFrame."""
    found: QueryHandle | None = getattr(frame, "__dict__", {}).get(_HANDLE)
    return found if hasattr(found, "failed_keys") else None


def query_of(frame: DataFrame) -> QueryHandle:
    """Return the handle of a query's DataFrame.

    Raises:
        InputError: Neither ``millrace.sql`` nor ``millrace.join`` returned this very DataFrame.
    """
    found = known_query(frame)
    if found is None:
        raise InputError(
            "nothing is known of lookups of this DataFrame: expected the very one that millrace.sql or "
            "millrace.join returned, not one derived from it"
        )
    return found
