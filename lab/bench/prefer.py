"""Rows that are wanted first: when they come, and what all rows take over the run without a preference.

Raman, Raman & Hellerstein 1999; Raman, Deshpande & Hellerstein 2003, section 4.1. Orders are joined with
customers, of whom one in twenty is wanted: those of one area. *ordered*: the file has the orders by customer,
so few row groups have wanted ones. *scattered*: each row group has some. Which share of the wanted rows has
come is told for shares of the time from a run's first batch to its last.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import millrace
from lab.bench.harness import Bench, Ran, Run, Target

ROWS, CUSTOMERS, AREAS = 8_000_000, 50_000, 20
_GROUP = 1 << 17
_QUERY = "SELECT o.id, o.total, o.note, c.area FROM o JOIN c ON o.customer = c.id"
_SHARES = (0.1, 0.5, 1.0)
"""Of the time, after which wanted rows are counted."""


def measure(run: Run) -> None:
    """Run the benchmark."""
    rows = max(10 * AREAS, round(ROWS * run.scale))
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        for name in run.names:
            run.says(f"{name}: writing {rows:,} rows")
            tables = _write(Path(folder), name, rows)
            sides = {
                "plain": _read(run, tables),
                "prefer": _read(run, tables, f"c.area = {AREAS // 2}"),
            }
            times = run.race(name, sides, control="plain")
            run.figures[f"{name}_total_ratio"] = times.ratio("prefer", "plain", "plain again")
            run.figures[f"{name}_wanted"] = times.note("prefer", f"wanted_{_SHARES[0]}")
            run.rows += times.rows(rows=rows)


def _write(folder: Path, name: str, rows: int) -> dict[str, str]:
    """Write both tables; return their paths."""
    draw = np.random.default_rng(19_991)
    keys = draw.integers(0, CUSTOMERS, rows)
    tables = {
        "o": pa.table(
            {
                "id": np.arange(rows),
                "customer": np.sort(keys) if name == "ordered" else keys,
                "total": draw.random(rows),
                "note": pa.array([f"note {number:>24}" for number in range(1000)]).take(
                    pa.array(draw.integers(0, 1000, rows))
                ),
            }
        ),
        "c": pa.table({"id": np.arange(CUSTOMERS), "area": np.arange(CUSTOMERS) * AREAS // CUSTOMERS}),
    }
    paths = {alias: str(folder / f"{name}_{alias}.parquet") for alias in tables}
    for alias, path in paths.items():
        pq.write_table(tables[alias], path, row_group_size=_GROUP)
    return paths


def _read(run: Run, tables: dict[str, str], *wanted: str) -> Callable[[], Ran]:
    """Return what reads all rows as they come, and tells which share of those wanted came when."""

    def read() -> Ran:
        query = millrace.query(_QUERY, spark=run.spark, tables=tables, options={"take_all": True})
        came: list[tuple[float, int]] = []
        rows = ids = 0
        began = time.perf_counter()
        for batch in query.to_batches(prefer=wanted or None):
            own = pc.sum(pc.equal(batch["area"], AREAS // 2)).as_py()
            came.append((time.perf_counter() - began, own))
            rows, ids = rows + batch.num_rows, ids + pc.sum(batch["id"]).as_py()
        seconds = time.perf_counter() - began
        first, total = came[0][0], sum(own for _, own in came)
        note = {"first_s": first}
        for share in _SHARES:
            end = first + share * (came[-1][0] - first)
            note[f"wanted_{share}"] = sum(own for at, own in came if at <= end) / total
        return Ran((rows, ids, total), note, seconds)

    return read


TARGETS = {
    "ordered_total_ratio": Target(high=1.05),
    "ordered_wanted": Target(low=0.95),
    "scattered_total_ratio": Target(high=1.05),
}
CASES = ("ordered", "scattered")
BENCH = Bench(measure, CASES, TARGETS, rounds=15)
