"""The shapes that are hard to divide, under a budget that they exceed."""

from __future__ import annotations

import random
from dataclasses import replace

import pyarrow as pa
import pytest

from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.spill import algorithms, partitions, runs
from millrace.engine.spill.folder import SpillFolder
from millrace.engine.spill.run_of import run_of
from millrace.engine.state.memory import Watch
from millrace.errors import InputError
from millrace.options import ALGORITHMS, Options
from tests.engine.eddy.blocks import batches, block, chain
from tests.engine.eddy.oracle import Case
from tests.engine.spill.runs import spilled

BUDGET = 3_000


def large(keys: int, rows: int = 120, *, distinct: tuple[str, ...] = (), count_only: bool = False) -> Case:
    """Return ``a.k = b.k AND b.j = c.j`` whose base tuples take more than the budget."""
    draw = random.Random(7)

    def column(n: int) -> pa.Array:
        return pa.array([draw.randrange(keys) for _ in range(n)], pa.int64())

    tables = {
        "a": pa.table({"k": column(rows)}),
        "b": pa.table({"k": column(rows), "j": column(rows)}),
        "c": pa.table({"j": column(rows // 2)}),
    }
    return block(tables, ["a.k = b.k", "b.j = c.j"], distinct=distinct, count_only=count_only)


@pytest.fixture(params=ALGORITHMS)
def options(request, tmp_path) -> Options:
    """A tight budget, for each algorithm."""
    return Options(memory_budget=BUDGET, algorithm=request.param, spill_folder=str(tmp_path), batch_size=16)


@pytest.mark.parametrize("online", [False, True])
def test_a_chain_that_does_not_fit(options, online):
    """It is spilled, read back, and complete; SHJ with all sources in turn has results before it spills."""
    case = large(40)
    rows, eddy = spilled(case, replace(options, online=online))
    assert rows == case.expected()
    assert eddy.tally.bytes_written > 0
    assert eddy.tally.bytes_read > 0
    if online and options.algorithm == "shj":
        assert eddy.tally.in_memory.count == 1


def test_one_heavy_key(options):
    """No hash divides tuples of a single key: rows are cut instead."""
    case = large(1, rows=40, count_only=True)
    rows, eddy = spilled(case, replace(options, memory_budget=1_200))
    assert rows == case.expected()
    assert eddy.tally.splits_by_rows > 0


def test_a_cross_product(options):
    """Without any key there is nothing to hash; the relations are cut by rows."""
    n = pa.array(range(150), pa.int64())
    case = block({"a": pa.table({"x": n}), "b": pa.table({"y": n})}, [])
    rows, eddy = spilled(case, options)
    assert rows == case.expected()
    if eddy.tally.bytes_written:  # the streamed one takes no state, so the other alone may fit
        assert eddy.tally.splits_by_key == 0


def test_a_cross_product_of_relations_without_columns(options):
    """Only the number of their tuples counts."""
    nothing = pa.record_batch([pa.nulls(30)], ["n"]).select([])
    table = pa.Table.from_batches([nothing])
    n = pa.array(range(400), pa.int64())
    tables = {"a": table, "b": pa.table({"y": n}), "c": pa.table({"z": pa.array([1, 1])})}
    case = block(tables, [], count_only=True)
    rows, _ = spilled(case, options)
    assert dict(rows) == {(30 * 400 * 2,): 1}


def test_counting_only(options):
    """All joins together give one count."""
    case = large(40, count_only=True)
    rows, eddy = spilled(case, options)
    assert rows == case.expected()
    assert sum(rows.values()) == 1
    assert eddy.figures().output_tuples == next(iter(rows))[0]


def test_what_fits_is_not_spilled(tmp_path):
    """SHJ and hybrid write nothing where a budget suffices; Grace and sort-merge write everything once."""
    case = chain(3)
    everything = sum(table.num_rows for table in case.tables.values())
    for algorithm in ALGORITHMS:
        options = Options(memory_budget=10**6, algorithm=algorithm, spill_folder=str(tmp_path))
        rows, eddy = spilled(case, options)
        assert rows == case.expected()
        written = sum(flow.rows for flow in eddy.tally.written.values())
        assert written == (0 if algorithm in ("shj", "hybrid") else everything)


def test_hybrid_writes_less_than_grace(tmp_path):
    """What stays in memory does not go to files."""
    case = large(200, rows=400)
    written = {}
    for algorithm in ("grace", "hybrid"):
        options = Options(
            memory_budget=20_000, algorithm=algorithm, spill_folder=str(tmp_path), batch_size=16
        )
        rows, eddy = spilled(case, options)
        assert rows == case.expected()
        written[algorithm] = eddy.tally.bytes_written
        if algorithm == "hybrid":
            assert eddy.tally.in_memory.count == 1
    assert 0 < written["hybrid"] < written["grace"]


@pytest.mark.broken_rule
def test_partitions_that_are_probed_most_stay_in_memory(tmp_path, monkeypatch):
    """The stream looks for keys of the largest partition, which had gone to a file first, and comes back."""
    keys = pa.array(range(2000), pa.int64())
    numbers = partitions.numbered(keys.to_numpy(), 0, 4)
    hot = [k for k, number in enumerate(numbers) if number == 2]
    built = pa.table({"k": list(range(2000)) + hot[: len(hot) // 5]}, pa.schema([("k", pa.int64())]))
    draw = random.Random(3)
    probing = [draw.choice(hot) if draw.random() < 0.9 else draw.randrange(2000) for _ in range(12_000)]
    case = block({"a": built, "s": pa.table({"k": pa.array(probing, pa.int64())})}, ["a.k = s.k"])
    options = Options(memory_budget=64_000, spill_folder=str(tmp_path), batch_size=256)

    def written() -> dict[int, int]:
        monkeypatch.setattr(algorithms, "partition_count", lambda *_: 4)
        rows, eddy = spilled(case, options, chunk=256, stream="s")
        assert rows == case.expected()
        return {relation: flow.rows for relation, flow in eddy.tally.written.items()}

    followed = written()
    monkeypatch.setattr(partitions, "to_keep", lambda resident, *_: set(resident))
    by_size = written()
    assert by_size[1] > 0.8 * 12_000 > 3 * followed[1]
    assert followed[0] <= 2 * by_size[0] + len(hot) * 2


def test_figures_tell_what_was_spilled(options):
    """Bytes and batches by relation, and joins from disk; sources count once."""
    case = large(40)
    _, eddy = spilled(case, options)
    figures = eddy.figures(3)
    assert figures.cell == 3
    assert figures.spilled_bytes == sum(m.bytes for m in figures.modules if m.action == "write") > 0
    assert figures.returned_bytes == sum(m.bytes for m in figures.modules if m.action == "read") > 0
    scanned = {m.name: m.tuples_out for m in figures.modules if m.action == "scan"}
    assert scanned == {f"Scan({alias})": table.num_rows for alias, table in case.tables.items()}
    assert figures.output_tuples == sum(case.expected().values())
    assert any(m.action == "join" and m.calls for m in figures.modules)


@pytest.mark.parametrize("bound", [None, 500])
def test_a_run_has_no_more_than_arrows_texts_can(tmp_path, monkeypatch, bound):
    """However large the budget is, so many bytes at most are put together to be sorted."""
    sizes: list[int] = []
    writer = SpillFolder.writer
    monkeypatch.setattr(
        SpillFolder,
        "writer",
        lambda self, relation, schema: (sizes.append(relation), writer(self, relation, schema))[1],
    )
    if bound is not None:
        monkeypatch.setattr(runs, "_RUN_BYTES", bound)
    case = large(40)
    budget = Options(memory_budget=1 << 34, algorithm="sort_merge", spill_folder=str(tmp_path), batch_size=16)
    rows, eddy = spilled(case, budget)
    assert rows == case.expected()
    per_run = eddy.tally.bytes_written / len(sizes)
    assert (per_run < 1_000) == (bound is not None)


@pytest.mark.parametrize("name", ["schedule", "watch"])
def test_what_a_budget_has_no_use_for_is_refused(name):
    """Nothing that a caller asks for is left out in silence."""
    case = large(3, rows=5)
    own = {"schedule": Schedule.of(case.spec, online=False, stream=None), "watch": Watch()}
    with pytest.raises(InputError, match=rf"memory_budget.*{name}"):
        run_of(case.spec, batches(case, 4), Options(memory_budget=BUDGET), **{name: own[name]})
