"""The query of figures 10 and 11: a scanned table and two external indexes, ``R.x = A.x AND R.y = B.y``.

Avnur & Hellerstein 2000, section 4.4. Both indexes know the same small share of R, at random. An index join
is like a selection on R: which one comes first decides how many tuples meet the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from millrace.arrivals.access_modules import IndexAM
from millrace.clock import VirtualClock
from millrace.expressions import ColumnRef
from millrace.options import Options
from millrace.router.back_pressure import Backpressure
from millrace.runs.eddy_run import EddyRun
from millrace.spec import Equality, JoinSpec, RelationSpec

ORDERS = {"A first": ("A", "B"), "B first": ("B", "A")}
"""Static orders: an eddy that keeps to one join first."""


def tables(tuples: int, known: float, seed: int) -> dict[str, pa.Table]:
    """Draw a table and, for each of its columns, one with the share of its values that an index knows."""
    draw = np.random.default_rng(seed)
    values = {column: draw.permutation(tuples) for column in "xy"}
    matches = round(known * tuples)
    return {
        "R": pa.table(values),
        "A": pa.table({"x": draw.permutation(tuples)[:matches]}),
        "B": pa.table({"y": draw.permutation(tuples)[:matches]}),
    }


def spec_of(data: dict[str, pa.Table]) -> JoinSpec:
    """Return the block; it counts its rows."""
    int64 = pa.int64()
    return JoinSpec(
        tuple(RelationSpec(name, table.schema, rows=table.num_rows) for name, table in data.items()),
        (
            Equality(ColumnRef("R", "x"), ColumnRef("A", "x"), int64),
            Equality(ColumnRef("R", "y"), ColumnRef("B", "y"), int64),
        ),
        count_only=True,
    )


def eddy_of(
    spec: JoinSpec,
    scan: Iterable[pa.RecordBatch],
    indexes: Mapping[str, IndexAM],
    name: str,
    clock: VirtualClock,
    limits: Backpressure,
    batch: int = 1,
) -> EddyRun:
    """Return an eddy of two index joins that routes by a static order of ``ORDERS`` or a policy."""
    options = Options(
        architecture="joins",
        policy="fixed" if name in ORDERS else name,
        order=ORDERS.get(name, ()),
        batch_size=batch,
        online=True,
    )
    access = {alias: [index] for alias, index in indexes.items()}
    return EddyRun(spec, {"R": scan}, options, access=access, clock=clock, backpressure=limits)
