"""Small blocks for tests of the router, and one way to run them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.output import Mask
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import Column, ColumnRef
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.oracle import Case, Rows, block, multiset, with_windows

JOINED = ("a.k = b.k", "b.j = c.j")


def chained(columns: Callable[..., Mapping], equalities: Sequence[str] = JOINED, **how: Any) -> Case:
    """Return ``a.k = b.k AND b.j = c.j`` over what a function makes for a relation and its keys."""
    keys = {"a": "k", "b": "kj", "c": "j"}
    return block({alias: pa.table(columns(alias, own)) for alias, own in keys.items()}, equalities, **how)


def chain(seed: int, rows: int = 9, equalities: Sequence[str] = JOINED) -> Case:
    """Return a chain over random tables, in which keys repeat."""
    draw = random.Random(seed)

    def columns(_: str, keys: str) -> Mapping[str, Any]:
        n = draw.randint(2, rows)
        drawn = {key: [draw.randint(0, 3) for _ in range(n)] for key in keys}
        return {"id": pa.array(range(n), pa.int32()), **drawn}

    return chained(columns, equalities)


def star(arms: dict[str, Sequence[int]], keys: dict[str, Sequence[int]]) -> Case:
    """Return a block that joins ``u``, whose columns are ``keys``, with one relation for each of them."""
    tables = {"u": pa.table({name: pa.array(values, pa.int64()) for name, values in keys.items()})}
    tables |= {name: pa.table({"k": pa.array(values, pa.int64())}) for name, values in arms.items()}
    return block(tables, [f"u.{name} = {name}.k" for name in arms], count_only=True)


def stream(seed: int, rows: int = 25) -> Case:
    """Return a chain over random streams with windows in all three."""
    draw = random.Random(seed)

    def columns(_: str, keys: str) -> Mapping[str, Any]:
        ticks = np.cumsum([draw.randint(0, 2) for _ in range(rows)])
        return {"at": ticks, **{key: [draw.randint(0, 3) for _ in range(rows)] for key in keys}}

    return with_windows(chained(columns), dict.fromkeys("abc", 4))


def rows_of(case: Case, run: Any) -> Rows:
    return multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))


def run(case: Case, options=None, *, chunk=4, sources=None, of=Run, **how) -> tuple[Rows, Any]:
    """Run the block in virtual time; return its rows and what ran it, for its figures.

    Some relations may have other ``sources`` than the case's own rows; ``of`` makes the run.
    """
    feeds = {**case.batches(chunk), **(sources or {})}
    made = of(case.spec, feeds, options or Options(), clock=VirtualClock(), **how)
    return rows_of(case, made), made


def flying(eddy: EddyDataflow, most: int) -> list[int]:
    """Return a list that gets the number of tuples in the buffer, in batches and in probes, at each step.

    No batch may have more than so many.
    """
    found, pop = [], eddy._buffer.pop

    def looking(**how: bool) -> Any:
        works = (*eddy._buffer.works(), *eddy.state.waiting())
        parts = [work[1] if isinstance(work, tuple) else work for work in works]
        sizes = [getattr(part, "batch", part).size for part in parts]
        assert max(sizes, default=0) <= most
        found.append(sum(sizes))
        return pop(**how)

    eddy._buffer.pop = looking  # type: ignore[method-assign]
    return found


ROW = Column(ColumnRef("t", "row"))


def numbered(rows: int) -> pa.RecordBatch:
    """Return so many rows ``t``, with their numbers."""
    return pa.record_batch({"row": pa.array(range(rows), pa.int64())})


def filtering(data: pa.RecordBatch, calls, arrival=1000, clock=None, limits=None, **options) -> Run:
    """Return an eddy that only filters the rows ``t``, and yields masks of those that pass."""
    spec = JoinSpec((RelationSpec("t", data.schema),), residuals=tuple(calls))
    arrivals = [data.slice(low, arrival) for low in range(0, data.num_rows, arrival)]
    how = {"output": Mask(), "clock": clock or VirtualClock(), "eddy": limits}
    return Run(spec, {"t": arrivals}, Options(**options), stream="t", **how)
