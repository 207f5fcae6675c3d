"""Star joins of three, four and five Wisconsin tables on unique2; every table joins the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from millrace.expressions import ColumnRef
from millrace.spec import Equality, JoinSpec, OutputColumn, RelationSpec

KEY = "unique2"
WAYS = (3, 4, 5)


def aliases(prefix: str, ways: int) -> list[str]:
    """Return ``tenk1`` and so on."""
    return [f"{prefix}{number + 1}" for number in range(ways)]


def star(tables: Mapping[str, pa.Table], *, count: bool) -> JoinSpec:
    """Return the block: ``count(*)``, which reads the keys alone, or ``*``, all columns of all tables.

    Args:
        tables: By alias, the first one the middle of the star.
        count: Whether rows are only counted.
    """
    first, *others = tables
    return JoinSpec(
        tuple(RelationSpec(alias, table.schema, rows=len(table)) for alias, table in tables.items()),
        tuple(
            Equality(ColumnRef(first, KEY), ColumnRef(other, KEY), tables[first].schema.field(KEY).type)
            for other in others
        ),
        output=()
        if count
        else tuple(
            OutputColumn(f"{alias}_{column}", ColumnRef(alias, column))
            for alias, table in tables.items()
            for column in table.column_names
        ),
        count_only=count,
    )


def steps(progress: Callable[[float], None], total: int) -> Callable[[int], Callable[[float], None]]:
    """Return what makes, for the number of a step, a watch of its share."""
    return lambda number: lambda share: progress((number + share) / total)
