"""How argument columns become what a predicate's function is called with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


class Values(Protocol):
    """Turns Arrow columns into arguments; frozen and picklable, for it travels to the tasks."""

    def objects(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return the values of each column as Python objects."""

    def series(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return one pandas Series (or DataFrame, for a struct) a column."""

    def arrays(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the arrays as the function expects them."""


@dataclass(frozen=True)
class PlainValues:
    """Arrow's own conversions, for use without Spark."""

    def objects(self, columns: Sequence[pa.Array]) -> list[list[Any]]:
        """Return the values of each column as Python objects."""
        return [column.to_pylist() for column in columns]

    def series(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Return one pandas Series a column."""
        return [column.to_pandas() for column in columns]

    def arrays(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the arrays unchanged."""
        return list(columns)
