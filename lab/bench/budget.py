"""Memory and I/O of a join whose state is several times its budget, for each algorithm.

Three relations: ``a`` and ``b`` are large and joined by a key that is unique in ``a``; ``c`` is small and
has no column in that key's class, so every partition needs it. The smaller of the large ones, ``a``, takes
``STATE_RATIO`` times the budget when it is built; ``b`` is streamed. The join runs in a process of its own,
which makes its tuples as they are read, so that what it holds is the join's. Its baseline is the resident
memory after a tiny join of the same kind, when everything is loaded and compiled; its peak is the
operating system's own count.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.peak import peak_memory
from millrace.engine.plan.expressions import ColumnRef
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.engine.spill.spilling import SpillingEddy
from millrace.errors import ExecutionError
from millrace.options import Options

MEGABYTE = 1_000_000
STATE_RATIO = 4.0
_STATE_ROW = 73  # a row of ``a``: 48 bytes of columns, a code of 8, and about 17 of an index
_BATCH = 16_384
_SMALL = 1000

SCHEMAS = {
    "a": pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.string())]),
    "b": pa.schema([("k", pa.int64()), ("j", pa.int64()), ("w", pa.int64())]),
    "c": pa.schema([("j", pa.int64()), ("x", pa.int64())]),
}


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        rows: Result rows; ``checksum`` is the sum of ``v + w + x`` and of the lengths of ``text`` over them.
        seconds: Wall time.
        ratio: Most resident bytes during the run, without those before it, over the budget.
        written: Bytes written to files.
    """

    rows: int
    checksum: int
    seconds: float
    ratio: float
    written: int


def run(
    algorithm: str,
    budget: int,
    folder: str | None = None,
    *,
    architecture: str = "stems",
    pool: str | None = None,
) -> Measured:
    """Run the join in a fresh process and return what was measured.

    ``pool`` is Arrow's allocator, its own one if None. That keeps memory that was freed for a while, more in
    one run than in another; ``"system"`` keeps next to none.

    Raises:
        ExecutionError: The run failed.
    """
    task = json.dumps([algorithm, budget, folder, architecture])
    command = [sys.executable, "-m", "lab.bench.budget", task]
    # Arrow's threads would each keep memory of their own.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if pool is not None:
        env["ARROW_DEFAULT_MEMORY_POOL"] = pool
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        told = f"algorithm {algorithm!r} and architecture {architecture!r}"
        raise ExecutionError(f"the run with {told} failed: {done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout))


def sizes(budget: int) -> dict[str, int]:
    """Return the number of rows of each relation."""
    rows = int(STATE_RATIO * budget / _STATE_ROW)
    return {"a": rows, "b": rows + rows // 4, "c": _SMALL}


def source(alias: str, rows: dict[str, int]) -> Iterator[pa.RecordBatch]:
    """Yield a relation's tuples, the same ones every time."""
    for number, low in enumerate(range(0, rows[alias], _BATCH)):
        n = min(_BATCH, rows[alias] - low)
        draw = np.random.default_rng([ord(alias), number])
        position = np.arange(low, low + n)
        if alias == "a":
            # A multiplication that is prime to the number of rows scatters the keys without a repetition.
            factor = next(f for f in count(7919, 2) if math.gcd(f, rows["a"]) == 1)
            half = pa.array(draw.integers(10**13, 10**14, n)).cast(pa.string())
            text = pc.binary_join_element_wise(half, half, "")
            columns = [pa.array(position * factor % rows["a"]), pa.array(draw.integers(0, 1000, n)), text]
        elif alias == "b":
            key = draw.integers(0, rows["a"], n)
            columns = [pa.array(key), pa.array(key % _SMALL), pa.array(draw.integers(0, 1000, n))]
        else:
            columns = [pa.array(position), pa.array(draw.integers(0, 1000, n))]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[alias])


def block(rows: dict[str, int]) -> JoinSpec:
    """Return the block."""
    ak, bk, bj, cj = (ColumnRef(*name) for name in ("ak", "bk", "bj", "cj"))
    output = [ColumnRef(*name.split(".")) for name in ("a.k", "a.v", "a.text", "b.w", "c.x")]
    return JoinSpec(
        tuple(RelationSpec(alias, schema, rows=rows[alias]) for alias, schema in SCHEMAS.items()),
        (Equality(ak, bk, pa.int64()), Equality(bj, cj, pa.int64())),
        output=tuple(OutputColumn(f"{ref.relation}_{ref.column}", ref) for ref in output),
    )


def _measure(budget: int, options: Options) -> Measured:
    warm = replace(options, memory_budget=2 * MEGABYTE)
    _joined(SpillingEddy(*_inputs(2 * MEGABYTE), warm))
    baseline = psutil.Process().memory_info().rss
    eddy = SpillingEddy(*_inputs(budget), replace(options, memory_budget=budget))
    began = time.perf_counter()
    rows, checksum = _joined(eddy)
    seconds = time.perf_counter() - began
    return Measured(rows, checksum, seconds, (peak_memory() - baseline) / budget, eddy.tally.bytes_written)


def _inputs(budget: int) -> tuple[JoinSpec, dict[str, Iterator[pa.RecordBatch]]]:
    rows = sizes(budget)
    return block(rows), {alias: source(alias, rows) for alias in rows}


def _joined(eddy: SpillingEddy) -> tuple[int, int]:
    """Return the number of rows, and their checksum."""
    rows, checksum = 0, 0
    for batch in eddy.run():
        rows += batch.num_rows
        parts: list[Any] = [batch.column(name) for name in ("a_v", "b_w", "c_x")]
        parts.append(pc.binary_length(batch.column("a_text")))
        checksum += sum(pc.sum(part).as_py() for part in parts)
    return rows, checksum


if __name__ == "__main__":
    name, size, where, kept = json.loads(sys.argv[1])
    where = where or tempfile.gettempdir()
    given = Options(algorithm=name, architecture=kept, spill_folder=where, batch_size=_BATCH)
    sys.stdout.write(json.dumps(asdict(_measure(size, given))))  # the parent process reads it
