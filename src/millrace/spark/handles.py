"""What is known of the DataFrames that Millrace returned, for ``explain`` and ``report``."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame

from millrace.errors import InputError
from millrace.run_report import RunReport


class Handle(Protocol):
    """A DataFrame's own account."""

    def explain(self) -> str:
        """Return what runs, as text."""

    def report(self) -> RunReport:
        """Return the figures of the latest run."""


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
