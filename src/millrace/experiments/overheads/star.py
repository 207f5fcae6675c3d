"""Star joins of three, four and five Wisconsin tables on unique2; every table joins the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from millrace.experiments.lab.block import block
from millrace.spec import JoinSpec

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
    return block(tables, *(f"{first}.{KEY} = {other}.{KEY}" for other in others), all_columns=not count)


def steps(progress: Callable[[float], None], total: int) -> Callable[[int], Callable[[float], None]]:
    """Return what makes, for the number of a step, a watch of its share."""
    return lambda number: lambda share: progress((number + share) / total)
