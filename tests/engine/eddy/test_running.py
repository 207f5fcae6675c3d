"""Runs of the eddy in the corners: empty relations, sets, products, bounded batches, waiting tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import Column, ColumnRef, Compare
from millrace.engine.policies import POLICIES
from millrace.engine.relations import RelationStore
from millrace.engine.router import buffer
from millrace.engine.router.buffer import Buffer
from millrace.engine.router.run_statistics import RunStatistics
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import Equality, JoinSpec, RelationSpec
from millrace.engine.state.stem import SteM
from millrace.engine.state.waiting import Waiting
from millrace.engine.tuples import Signature, TupleBatch
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.blocks import block, chain, run, star
from tests.engine.eddy.oracle import Case

NOTHING = pa.schema([])


def unnamed(rows: int) -> pa.RecordBatch:
    """Return rows of no column at all."""
    return pa.record_batch([pa.nulls(rows)], ["x"]).select([])


def test_an_empty_relation_ends_the_run_early() -> None:
    """Once a relation has ended without a tuple, no other source is read any further."""

    def untouched() -> Iterator[pa.RecordBatch]:
        raise AssertionError("read although there can be no result")
        yield  # pragma: no cover

    case = star({"x": [1], "y": []}, {"x": [1], "y": [1]})
    sources = {"u": untouched(), "x": untouched(), "y": case.tables["y"].to_batches()}
    eddy = EddyRun(case.spec, sources)
    assert [batch.to_pylist() for batch in eddy.run()] == [[{"__count": 0}]]
    assert eddy.figures().output_tuples == 0


def test_a_relation_of_null_keys_is_as_good_as_empty() -> None:
    """Rows that can match nothing are not tuples of the block."""
    tables = {a: pa.table({"k": pa.array([None] * n, pa.int64())}) for a, n in (("a", 3), ("b", 5))}
    rows, eddy = run(block(tables, ["a.k = b.k"]))
    assert not rows
    assert eddy.figures().tuples_routed == 0


@pytest.mark.parametrize("online", [False, True])
def test_results_come_early_only_when_asked_for(online: bool) -> None:
    """Interleaved sources give a first result before any of them has ended."""
    read: list[str] = []

    def source(alias: str, table: pa.Table) -> Iterator[pa.RecordBatch]:
        for batch in table.to_batches(max_chunksize=1):
            read.append(alias)
            yield batch

    tables = {a: pa.table({"k": [7] * 50}) for a in "ab"}
    case = block(tables, ["a.k = b.k"])
    sources = {alias: source(alias, table) for alias, table in tables.items()}
    next(EddyRun(case.spec, sources, Options(batch_size=1, online=online)).run())
    assert Counter(read) == ({"a": 1, "b": 1} if online else {"a": 50, "b": 1})


def test_a_set_must_be_built_and_wholly_joined() -> None:
    """Duplicates are dropped in its SteM, by the columns that are joined: all or it is refused."""
    case = block(chain(1).tables, ["a.k = b.k", "b.j = c.j"], distinct=["c"])
    with pytest.raises(InputError, match="must be built"):
        run(
            block(
                {"a": case.tables["a"], "c": case.tables["c"].select(["j"])}, ["a.k = c.j"], distinct=["c"]
            ),
            stream="c",
        )
    with pytest.raises(InputError, match="every column of it must be joined on"):
        run(case)
    # One column joined in two types is still one column.
    k, j = ColumnRef("a", "k"), ColumnRef("c", "j")
    equalities = (Equality(k, j, pa.int64()), Equality(k, j, pa.float64()))
    with pytest.raises(InputError, match="every column of it must be joined on"):
        run(Case(JoinSpec(case.spec.relations[::2], equalities, count_only=True), case.tables))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_batch_outgrows_its_size(policy: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many matches a tuple has, in joins, products and scans: probes stop and go on later."""
    seen: list[int] = []
    push = Buffer.push

    def watch(self: Buffer, batches: list[TupleBatch]) -> None:
        batches = list(batches)
        seen.extend(batch.size for batch in batches)
        push(self, batches)

    monkeypatch.setattr(Buffer, "push", watch)
    tables = {a: pa.table({"k": [1] * n}) for a, n in (("a", 6), ("b", 7), ("c", 3))}
    case = block(tables, ["a.k = b.k"])
    for schedule in (None, Schedule(None, True, (0, 1, 2)), Schedule(0, True, (0, 1, 2))):
        options = Options(architecture="stems", policy=policy, batch_size=limit, reoptimize_every=5)
        rows, eddy = run(case, options, schedule=schedule, chunk=100)
        assert rows == {(1, 1, 1): 126}
        assert max(seen) == limit
        assert not eddy._state._waiting._waiting


@pytest.mark.parametrize("schedule", [None, Schedule(None, True, (1, 0, 2)), Schedule(1, True, (1, 0, 2))])
def test_a_product_of_relations_without_columns_only_counts(schedule: Schedule | None) -> None:
    """Rows without a column are rows: counted, or returned as so many empty rows."""
    relations = tuple(RelationSpec(a, NOTHING) for a in "abc")
    sources = {"a": [unnamed(3)], "b": [unnamed(2), unnamed(2)], "c": [unnamed(5)]}
    for counted in (True, False):
        spec = JoinSpec(relations, count_only=counted)
        results = list(EddyRun(spec, sources, Options(batch_size=4), schedule=schedule).run())
        assert all(batch.schema == spec.output_schema for batch in results)
        assert (results[0]["__count"][0].as_py() if counted else sum(b.num_rows for b in results)) == 60


def test_a_set_without_columns_has_one_tuple() -> None:
    """All tuples of no column are equal, so a set holds one at most."""
    relations = (RelationSpec("a", NOTHING), RelationSpec("b", NOTHING, distinct=True))
    for rows, expected in (([unnamed(2), unnamed(3)], 4), ([], 0)):
        eddy = EddyRun(JoinSpec(relations, count_only=True), {"a": [unnamed(4)], "b": rows})
        assert [b.to_pylist() for b in eddy.run()] == [[{"__count": expected}]]


def test_prior_probers_wait_and_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuple that arrives before its partners waits, meets each once, and leaves."""
    held: list[int] = []
    hold = Waiting.hold

    def watch(self: Waiting, batch: TupleBatch, relation: int, seen: int) -> None:
        held.append(seen)
        hold(self, batch, relation, seen)

    monkeypatch.setattr(Waiting, "hold", watch)
    tables = {"u": pa.table({"k": [1, 2]}), "s": pa.table({"k": [1, 1, 2, 3, 1]})}
    case = block(tables, ["u.k = s.k"])
    rows, eddy = run(case, Options(batch_size=1), schedule=Schedule(0, True, (0, 1)))
    assert rows == {(1, 1): 3, (2, 2): 1}
    assert held[0] == 1
    assert max(held) == 5
    assert not eddy._state._waiting._waiting
    assert eddy._buffer.pop() is None


def test_every_tuple_is_accounted_for() -> None:
    """Orders add up to the source tuples, and modules' books to what went through them."""
    keys = {"x": [0, 1, 5] * 10, "y": [0, 7, 1] * 10}
    case = star({"x": [0, 1, 1], "y": [0, 1]}, keys)
    rows, eddy = run(case, Options(policy="random", batch_size=4, reoptimize_every=3), stream="u", chunk=9)
    figures = eddy.figures(3)
    by_name = {(m.name, m.action): m for m in figures.modules}
    assert rows == {(10,): 1}
    assert figures.cell == 3
    assert figures.output_tuples == by_name["Output", "output"].tuples_in == 10
    assert {k[0]: m.tuples_out for k, m in by_name.items() if k[1] == "scan"} == {
        "Scan(u)": 30,
        "Scan(x)": 3,
        "Scan(y)": 2,
    }
    assert sum(count for order, count in figures.orders if order.startswith("u")) == 30
    made = sum(m.tuples_out for m in figures.modules if m.action == "probe")
    assert made == figures.intermediate_tuples + figures.output_tuples


def test_residual_predicates_are_placed_anywhere_but_applied_once() -> None:
    """Whether a residual is tried first or last, exactly the rows that pass it remain."""
    tables = {a: pa.table({"k": [1, 1, 2, None], "v": [1, 2, 3, None]}) for a in "ab"}
    plain = block(tables, ["a.k = b.k"])
    less = Compare("<", Column(ColumnRef("a", "v")), Column(ColumnRef("b", "v")), pa.int64())
    case = Case(
        JoinSpec(plain.spec.relations, plain.spec.equalities, (less, less), plain.spec.output), tables
    )
    for seed, size in product(range(5), (1, 100)):
        rows, eddy = run(case, Options(policy="random", batch_size=size, seed=seed))
        assert rows == case.expected() == {(1, 1, 1, 2): 1}
        assert sum(m.tuples_out for m in eddy.figures().modules if m.action == "select") == 2


def test_an_index_is_made_when_a_probe_first_needs_it() -> None:
    """A SteM has one index for each combination of columns that was probed, and none before."""
    _, eddy = run(
        chain(3),
        Options(policy="fixed", order=("a", "b", "c"), transfer=False),
        schedule=Schedule(0, False, (1, 2, 0)),
    )
    stems: Sequence[SteM] = eddy._state.stems
    assert [len(stem.base._indexes) for stem in stems] == [0, 1, 1]


@pytest.mark.broken_rule
def test_what_was_divided_comes_together_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are merged; rows, and the orders that tuples took, are the same as without."""
    steps = dict(zip("vwxyz", (3, 7, 9, 11, 13), strict=True))
    keys = {name: [(i * step) % 50 for i in range(4000)] for name, step in steps.items()}
    case = star(dict.fromkeys(keys, range(45)), keys)
    found = {}
    for share in (buffer._SMALL, 0.0):
        monkeypatch.setattr(buffer, "_SMALL", share)
        rows, eddy = run(case, Options(policy="lottery", batch_size=1000, seed=1), stream="u", chunk=300)
        assert rows == case.expected()
        figures = eddy.figures()
        assert sum(count for _, count in figures.orders) == 4000
        assert all(set(order.split(" → ")) <= {"u", *"vwxyz"} for order, _ in figures.orders)
        found[share] = sum(module.calls for module in figures.modules if module.action == "probe")
    few, many = found.values()
    assert few < 0.75 * many


def test_merged_paths_are_told_apart() -> None:
    """Two that went on alike after they were merged are not taken for one."""
    store = RelationStore.single(pa.record_batch({"k": [1, 2]}), [], [])

    def merged(*names: str) -> TupleBatch:
        parts = [TupleBatch(Signature(1), {0: np.arange(2)}, {0: store}, path=(n,), origin=2) for n in names]
        return TupleBatch.merged(parts).walked("z")

    statistics = RunStatistics(["a"], 10)
    statistics.end(TupleBatch.merged([merged("u", "v"), merged("w", "x")]))
    assert dict(statistics.figures(0, 0.0, "", 0).orders) == {f"{n} → z": 2 for n in "uvwx"}


@pytest.mark.parametrize("architecture", ["stems", "joins", "static"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_time_of_a_run_that_does_not_end_is_told(architecture: str, fails: bool) -> None:
    """A run that is closed early, or fails, has taken the time that it has taken."""
    clock = VirtualClock()
    case = block({"a": pa.table({"k": range(9)}), "b": pa.table({"k": range(9)})}, ["a.k = b.k"])

    def slow(alias: str) -> Iterator[pa.RecordBatch]:
        for batch in case.tables[alias].to_batches(max_chunksize=3):
            clock.advance(2.0)
            yield batch
        if fails:
            raise OSError("the source broke")

    options = Options(architecture=architecture, batch_size=2)
    run = run_of(case.spec, {alias: slow(alias) for alias in "ab"}, options, clock=clock)
    results = run.run()
    if fails:
        with pytest.raises(OSError, match="broke"):
            list(results)
    else:
        next(results)
        results.close()
    assert run.figures().seconds == clock.now() > 0
