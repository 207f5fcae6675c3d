"""Python workers: what they load and draw, and that they do not wait for input or a look at all modules."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import subprocess
import sys
import types
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.engine.plan.expressions import Column, ColumnRef, Compare, InList, Literal, Predicate
from millrace.engine.plan.spec import Equality, JoinSpec, OutputColumn, RelationSpec
from millrace.options import Options
from millrace.parquet.discovery import open_table
from millrace.parquet.tables import splits
from millrace.spark.coordinator import Limits
from millrace.spark.exchange import Cut
from millrace.spark.hypercube import Axis, Cube
from millrace.spark.reports import Sink
from millrace.spark.task_inputs import Scan
from millrace.spark.tasks import EddyTask, ScanTask
from millrace.spark.worker import acknowledge, keep_modules, worker_task

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other kernels have no such setting")


@pytest.fixture
def connected():
    """Both ends of a connection within this machine, and the socket that listens."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        yield near, far


@linux
def test_connections_of_this_machine_are_asked_before_a_task_reads(connected, monkeypatch):
    """Where there is such a setting."""
    near, far = connected

    def asked() -> list[int]:
        return [end.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for end in (near, far)]

    @worker_task
    def task(rows):
        yield asked()
        yield from rows

    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    assert list(task([7])) == [[1, 1], 7]
    before = acknowledge()
    assert before >= 2
    near.close()
    assert acknowledge() < before
    monkeypatch.delattr(socket, "TCP_QUICKACK")
    assert acknowledge() == 0


def test_modules_are_not_looked_at_for_garbage(monkeypatch):
    """What is made later is; and whatever a new module brought is kept once more."""
    try:
        monkeypatch.setitem(sys.modules, "one_more_than_before", types.ModuleType("one_more_than_before"))
        assert keep_modules()
        frozen = gc.get_freeze_count()
        assert frozen > 10_000
        assert not keep_modules()
        loop: list[object] = []
        loop.append(loop)
        del loop
        assert gc.collect() > 0
        brought = types.ModuleType("yet_another")
        brought.__dict__["lists"] = [[] for _ in range(1000)]  # more than may have gone meanwhile
        monkeypatch.setitem(sys.modules, "yet_another", brought)
        assert keep_modules()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


FORKED = """
import os, sys
from millrace.spark import daemon

daemon.load()
import numpy

for _ in range(3):
    if not os.fork():
        print(numpy.random.random(), "millrace.spark.tasks" in sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


def test_workers_draw_numbers_of_their_own():
    """Those that are forked with Millrace loaded are as others are."""
    run = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert len(set(lines)) == 3 and all(line.endswith("True") for line in lines)


# What a worker does not load for a join: every module costs each of them time and memory.


NOT_LOADED = [
    *("aiohttp", "asyncio", "concurrent.futures", "cryptography", "msgspec", "pandas", "rich"),
    *("sqlalchemy", "sqlglot", "tenacity", "typer"),
    *("millrace.api", "millrace.cli", "millrace.lookups", "millrace.streams"),
    *("millrace.engine.spill.spilling", "millrace.engine.stairs.state"),
]

WORKER = """
import pickle, sys
import pyspark.worker
tasks, numbers = pickle.load(open(sys.argv[1], "rb"))
made = [sum(batch.num_rows for batch in task(iter([numbers]))) for task in tasks]
print(made, [name for name in sys.argv[2:] if name in sys.modules])
"""


def compare(op: str, column: str, value: object, kind: pa.DataType) -> Predicate:
    relation, _, name = column.partition(".")
    return Compare(op, Column(ColumnRef(relation, name)), Literal(value, kind), kind)


def test_a_join_loads_what_it_needs(tmp_path):
    """The tasks of a join with filters and an exchange load no library that only other queries need."""
    day, price = pa.date32(), pa.decimal128(9, 2)
    columns = {
        "day": pa.array([date(2024, 1, n) for n in (1, 2, 3)], day),
        "price": pa.array(map(Decimal, ("1.10", "2.20", "3.30")), price),
        "name": pa.array(["a", None, "b"]),
        "nation": pa.array([1, 1, 2], pa.int32()),
    }
    filters = {
        "o": (compare(">", "o.day", date(2023, 1, 1), day), compare("<", "o.price", Decimal("9.00"), price)),
        "c": (InList(Column(ColumnRef("c", "nation")), (1, 2), pa.int32()),),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = open_table(str(tmp_path / "t.parquet"))
    scans = {alias: Scan.of(table.schema, each, [splits(table, each)]) for alias, each in filters.items()}
    cut = Cut(0, Cube((Axis(2, pa.string(), ((0, "name"), (1, "name"))),)), 1024)
    join = JoinSpec(
        tuple(RelationSpec(alias, table.schema, rows=3) for alias in scans),
        (Equality(ColumnRef("o", "name"), ColumnRef("c", "name"), pa.string()),),
        output=(OutputColumn("day", ColumnRef("o", "day")), OutputColumn("nation", ColumnRef("c", "nation"))),
    )
    sink = Sink("run", None, hidden=True)
    tasks = (
        EddyTask(join, Options(), None, scans, None, (), Limits("run"), None, None, sink),
        ScanTask({"o": (scans["o"], cut)}, 4096, sink),
    )
    sent = tmp_path / "tasks"
    sent.write_bytes(pickle.dumps((tasks, pa.record_batch({"id": pa.array([0])}))))
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(sent), *NOT_LOADED],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},  # the rows are few
        capture_output=True,
        text=True,
        check=False,
    )
    rows = "[3, 3]"  # two rows and one of figures; one block or two and one of figures
    assert (done.stdout.strip(), done.returncode) == (f"{rows} []", 0), done.stderr
