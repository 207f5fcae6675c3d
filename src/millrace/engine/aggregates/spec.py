"""What a block aggregates before it hands its rows on: frozen, and it pickles.

The rows of a block that agree in the *keys* become one row with *partials*: sums, counts, least and greatest
values. Whoever reads the block sums up the sums and counts, and takes the least of the least. So it does
not matter how rows are divided among partial rows: a task may give out several for one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from millrace.engine.values import Value

How = Literal["sum", "count", "min", "max"]


@dataclass(frozen=True)
class Partial:
    """A column of partial results.

    Attributes:
        name: Its name, unlike any other in the block.
        how: ``"count"`` counts the rows whose value is not null.
        value: Of what; None counts rows.
        type: Of the column: for sums of whole numbers ``int64``, of doubles ``double``, of decimals one of
            the same scale and, up to 38, more digits.
    """

    name: str
    how: How
    value: Value | None
    type: pa.DataType


@dataclass(frozen=True)
class AggregateSpec:
    """How the rows of a join become partial rows.

    Attributes:
        keys: Columns of the join that the partial rows keep; rows with equal ones may become one.
        partials: The other columns.
    """

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]

    def schema(self, joined: pa.Schema) -> pa.Schema:
        """Return the columns of the partial rows, from those of the join."""
        partials = [pa.field(p.name, p.type) for p in self.partials]
        return pa.schema([*(joined.field(key) for key in self.keys), *partials])
