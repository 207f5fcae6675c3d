"""Runs of the eddy in the corners: empty relations, sets, products, bounded batches, waiting tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given, strategies as st

from lab.queues import Backpressure
from millrace.engine.access.schedule import Schedule
from millrace.engine.eddy import eddy as buffer, preference, run_statistics as module
from millrace.engine.eddy.dataflow import EddyDataflow
from millrace.engine.eddy.ingest import KeyRanges
from millrace.engine.eddy.output import Output
from millrace.engine.eddy.run import Run
from millrace.engine.eddy.run_statistics import Trace
from millrace.engine.eddy.statistics import Statistics
from millrace.engine.operators import selection, udf_selection
from millrace.engine.plan.expressions import Call, Column, ColumnRef, Compare, Literal
from millrace.engine.plan.spec import JoinSpec, RelationSpec
from millrace.engine.stairs import invariants as stairs
from millrace.engine.stairs.stair import STAIR
from millrace.engine.tuples.batch import TupleBatch, singleton
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, MIGRATIONS, POLICY_NAMES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.access_cases import any_options
from tests.engine.eddy.answers import scanned, schedules
from tests.engine.eddy.blocks import chain, flying, rows_of, run, star
from tests.engine.eddy.oracle import Case, answer_of, block, cases, compare, dense_cases, having
from tests.engine.laws import examples
from tests.engine.operators import Probe
from tests.engine.state.rig import Rig, Tables
from tests.reports.pages.reports import drifting

NOTHING = pa.schema([])
INT = pa.int64()


def unnamed(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(rows)], ["x"]).select([])


def test_an_empty_relation_ends_the_run_early() -> None:
    """Once a relation has ended without a tuple, no other source is read any further."""
    case = star({"x": [1], "y": []}, {"x": [1], "y": [1]})
    unread = {alias: (1 / 0 for _ in "x") for alias in "ux"}  # which fails when it is read
    assert run(case, sources=unread)[0] == {(0,): 1}


@pytest.mark.parametrize("online", [False, True])
def test_results_come_early_only_when_asked_for(online: bool) -> None:
    """Interleaved sources give a first result before any has ended; no more is read than a round needs."""
    read: list[str] = []

    def source(alias: str) -> Iterator[pa.RecordBatch]:
        for _ in range(50):
            read.append(alias)
            yield pa.record_batch({"k": [7]})

    case = block({a: pa.table({"k": [7] * 50}) for a in "ab"}, ["a.k = b.k"])
    results = Run(case.spec, {a: source(a) for a in "ab"}, Options(batch_size=1, online=online)).run()
    assert not read
    next(results)
    assert Counter(read) == ({"a": 1, "b": 1} if online else {"a": 50, "b": 1})


def test_a_set_must_be_built_and_wholly_joined() -> None:
    """Duplicates are dropped in its SteM, by the columns that are joined: all or it is refused."""
    tables = chain(1).tables
    sets = block({"a": tables["a"], "c": tables["c"].select(["j"])}, ["a.k = c.j"], distinct=["c"])
    with pytest.raises(InputError, match="must be built"):
        run(sets, stream="c")
    case = block({"a": tables["a"], "c": tables["c"]}, ["a.k = c.j"], distinct=["c"])
    # One column joined in two types is still one column.
    twice = (*case.spec.equalities, replace(case.spec.equalities[0], type=pa.float64()))
    for each in (case, replace(case, spec=replace(case.spec, equalities=twice))):
        with pytest.raises(InputError, match="every column of it must be joined on"):
            run(each)


@pytest.mark.parametrize("schedule", [None, Schedule(None, True, (1, 0, 2)), Schedule(1, True, (1, 0, 2))])
def test_a_product_of_relations_without_columns_only_counts(schedule: Schedule | None) -> None:
    """Rows without a column are rows: counted, or returned as so many empty rows; a set holds one at most."""
    relations = tuple(RelationSpec(a, NOTHING) for a in "abc")
    sources = {"a": [unnamed(3)], "b": [unnamed(2), unnamed(2)], "c": [unnamed(5)]}
    for counted, is_set in product((True, False), repeat=2):
        own = (*relations[:2], replace(relations[2], distinct=is_set))
        spec = JoinSpec(own, count_only=counted)
        results = list(Run(spec, sources, Options(batch_size=4), schedule=schedule).run())
        assert all(batch.schema == spec.output_schema for batch in results)
        found = results[0]["__count"][0].as_py() if counted else sum(b.num_rows for b in results)
        assert found == (12 if is_set else 60)


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


@pytest.mark.parametrize("architecture", ["stems", "joins", "static"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_time_of_a_run_that_does_not_end_is_told(architecture: str, fails: bool) -> None:
    """A run that is closed early, or fails, has taken the time that it has taken."""
    clock = VirtualClock()
    case = block({alias: pa.table({"k": range(9)}) for alias in "ab"}, ["a.k = b.k"])

    def slow(alias: str) -> Iterator[pa.RecordBatch]:
        for batch in case.tables[alias].to_batches(max_chunksize=3):
            clock.advance(2.0)
            yield batch
        if fails:
            raise OSError("the source broke")

    options = Options(architecture=architecture, batch_size=2)
    run = Run(case.spec, {alias: slow(alias) for alias in "ab"}, options, clock=clock)
    with closing(run.run()) as results, pytest.raises(OSError, match="broke") if fails else nullcontext():
        next(results)
        list(results if fails else ())
    assert run.figures().seconds == clock.now() > 0


@pytest.mark.parametrize("filtered", ["not", "compiled", "called"])
@pytest.mark.parametrize(
    ("width", "most"), [(400, 1 << 20), pytest.param(40_000, 1 << 26, marks=pytest.mark.nightly)]
)
def test_wide_rows_come_in_small_batches(monkeypatch, filtered: str, width: int, most: int) -> None:
    """More than Arrow's texts can have in one array, 2.4 GB at night, is gathered in pieces."""
    texts = pa.table({"k": range(60), "text": [f"{n:0{width}d}" for n in range(60)]})
    fans = pa.table({"k": [n % 60 for n in range(60_000)], "name": [""] * 60_000})
    case = block({"texts": texts, "fans": fans}, ["texts.k = fans.k"])
    text, read = Column(ColumnRef("texts", "text")), []

    def passing(texts: pa.Array, _: pa.Array) -> pa.Array:
        read.append(texts.nbytes)
        return pc.is_valid(texts)

    call = Call(PredicateSpec("p", passing, "arrow"), (text, Column(ColumnRef("fans", "k"))))
    compared = Compare(">", text, Column(ColumnRef("fans", "name")), pa.string())
    case = having(case, *{"not": (), "compiled": (compared,), "called": (call,)}[filtered])
    options = Options(policy="fixed", order=("fans", "texts"))
    sources = {alias: table.to_batches() for alias, table in case.tables.items()}
    for module_of in (selection, udf_selection):
        monkeypatch.setattr(module_of, "BATCH_BYTES", most)
    output = Output(case.spec, options.batch_size, most)
    eddy = Run(case.spec, sources, options, stream="fans", output=output, clock=VirtualClock())
    sizes = [(batch.num_rows, batch.nbytes) for batch in eddy.run()]
    assert sum(rows for rows, _ in sizes) == 60_000
    assert max([size for _, size in sizes] + read) < 3 * most


def test_tuples_are_graded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many predicates they meet before they are joined, whether they are built or streamed.

    Built ones are graded once more, to know which streamed tuples join to them.
    """
    graded, right = [], preference.evaluate
    monkeypatch.setattr(preference, "evaluate", lambda *given: graded.append(found := right(*given)) or found)
    all_, none = ([compare(op, f"{alias}.k", f"{alias}.k", INT) for alias in "rs"] for op in ("<=", "<"))
    case = having(block({alias: pa.table({"k": range(8)}) for alias in "rs"}, ["r.k = s.k"]), *all_, *all_)
    for online in (False, True):
        graded.clear()
        options, eddy = Options(online=online, policy="fixed"), preference.PreferringDataflow
        made = Run(case.spec, case.batches(8), options, clock=VirtualClock(), eddy=eddy)
        preference.prefer(made, none)
        assert rows_of(case, made) == case.expected()
        assert sum(map(len, graded)) == (16 if online else 24)


def test_users_change_their_mind() -> None:
    """What is wanted from now on comes next, also of what has waited; then the rest, as it was read."""
    keys = pa.table({"k": range(100)})
    case = block({"r": keys, "s": keys}, ["r.k = s.k"])
    key = Column(ColumnRef("r", "k"))
    wanted = (Compare(">=", key, Literal(50, INT), INT),), (Compare("<", key, Literal(10, INT), INT),)
    read: list[int] = []

    def source() -> Iterator[pa.RecordBatch]:
        for batch in keys.to_batches(max_chunksize=10):
            read.append(batch.num_rows)
            yield batch

    eddy = partial(preference.PreferringDataflow, latest=lambda: wanted[len(read) > 7])
    made = Run(
        case.spec,
        {"r": source(), "s": keys.to_batches()},
        Options(batch_size=10),
        clock=VirtualClock(),
        stream="r",
        eddy=eddy,
    )
    found = [k for batch in made.run() for k in batch["r_k"].to_pylist()]
    assert found == [*range(50, 70), *range(10), *range(10, 50), *range(70, 100)]


def test_users_change_their_mind_when_all_has_been_read() -> None:
    """What waits is put in another order, too."""
    keys = pa.table({"k": range(200)})
    case = block({"r": keys, "s": keys}, ["r.k = s.k"])
    key, found = Column(ColumnRef("r", "k")), list[int]()
    wanted = tuple((Compare(op, key, Literal(limit, INT), INT),) for op, limit in ((">=", 190), ("<", 20)))
    eddy = partial(preference.PreferringDataflow, latest=lambda: wanted[len(found) > 10])
    sources = {"r": keys.slice(10).to_batches(10) + keys.slice(0, 10).to_batches(), "s": keys.to_batches()}
    made = Run(case.spec, sources, Options(batch_size=10), clock=VirtualClock(), stream="r", eddy=eddy)
    for batch in made.run():
        found.extend(batch["r_k"].to_pylist())
    assert sorted(found) == [*range(200)] and found.index(0) < 40


@pytest.mark.parametrize(("seconds", "waits"), [(0.1, False), (1.0, True)])
def test_others_wait_where_their_work_takes_longer_than_their_reading(monkeypatch, seconds, waits) -> None:
    """Reading takes 0.1 s a row, and what comes after it is the reader's; some have to wait to know that."""
    monkeypatch.setattr(preference, "FIRST_ASIDE", 200)
    keys, clock, found = pa.table({"k": range(100)}), VirtualClock(), list[int]()
    case = block({"r": keys, "s": keys}, ["r.k = s.k"])
    wanted = (Compare(">=", Column(ColumnRef("r", "k")), Literal(90, INT), INT),)

    def source() -> Iterator[pa.RecordBatch]:
        for batch in keys.to_batches(max_chunksize=10):
            clock.advance(1)
            yield batch

    eddy = partial(preference.PreferringDataflow, latest=lambda: wanted)
    sources = {"r": source(), "s": keys.to_batches()}
    made = Run(case.spec, sources, Options(batch_size=10), clock=clock, stream="r", eddy=eddy)
    for batch in made.run():
        found.extend(batch["r_k"].to_pylist())
        clock.advance(seconds * batch.num_rows)
    assert sorted(found) == [*range(100)] and (found.index(90) < 50) == waits


FIRST = [*range(30, 40), *range(80, 90)]


@pytest.mark.parametrize("size", [4, 25], ids="size {}".format)
@pytest.mark.parametrize(
    ("wanted", "later", "found"),
    [
        ("r.month = 3", None, FIRST),
        ("s.month = 3", None, FIRST),
        ("t.part = 3", None, FIRST),
        ("r.month = 3", "s.k = 65", [30, 65]),
        ("s.k = 65", "t.part = 3", [65, *FIRST]),
        ("s.name = 'n95'", None, [95]),
        ("s.k = 1000", None, []),
    ],
)
def test_row_groups_that_may_have_wanted_rows_are_read_first(tmp_path, wanted, later, found, size) -> None:
    """By the wish or by the keys of what it leads to, also when it changes; each takes a second to read.

    Rows wait no longer than wanted ones may come: memory and time are for what is out of order alone.
    Wanted ones do not wait for others to make a batch.
    """
    keys = range(100)
    months = [k // 10 % 5 for k in keys]
    tables = {
        "r": pa.table({"k": keys, "month": months}),
        "s": pa.table({"k": keys, "name": [f"n{k}" for k in keys], "month": months}),
        "t": pa.table({"month": range(5), "part": range(5)}),
    }
    case = block(tables, ["r.k = s.k", "s.month = t.month"])
    clock, out = VirtualClock(), list[tuple[int, float]]()

    class SlowReads(KeyRanges):
        def keeps(self, *given: Any) -> bool:
            clock.advance(1)
            return super().keeps(*given)

    def wish(text: str) -> tuple[Compare]:
        left, value = text.split(" = ")
        kind = pa.string() if "'" in value else INT
        constant = value.strip("'") if "'" in value else int(value)
        return (Compare("=", Column(ColumnRef(*left.split("."))), Literal(constant, kind), kind),)

    wishes, ranges = (wish(wanted), wish(later or wanted)), SlowReads()
    made = Run(
        case.spec,
        {**case.batches(100), **scanned(case, {"r": tables["r"]}, tmp_path, 10, ranges, size)},
        Options(batch_size=1),
        clock=clock,
        stream="r",
        ranges=ranges,
        eddy=partial(preference.PreferringDataflow, latest=lambda: wishes[bool(out)]),
    )
    for batch in made.run():
        out += [(k, clock.now()) for k in batch["r_k"].to_pylist()]
    assert sorted(k for k, _ in out) == [*keys]
    assert [k for k, _ in out[: len(found)]] == found
    assert out[max(0, len(found) - 1)][1] <= 1 + (len({k // 10 for k in found}) or size // 10)
    assert out[50][1] <= 8


def test_wanted_tuples_that_wait_for_more_go_before_others(tmp_path) -> None:
    """What filters have left is too little for a batch when no wanted tuples will come any more."""
    keys = pa.table({"k": range(40), "part": [n % 2 if 10 <= n < 30 else 0 for n in range(40)]})
    case, ranges = block({"r": keys, "s": keys.select(["k"])}, ["r.k = s.k"]), KeyRanges()
    wanted = (Compare("=", Column(ColumnRef("r", "part")), Literal(1, INT), INT),)
    made = Run(
        case.spec,
        {**case.batches(40), **scanned(case, {"r": keys}, tmp_path, 10, ranges)},
        Options(batch_size=12 * 8),
        clock=VirtualClock(),
        stream="r",
        ranges=ranges,
        eddy=partial(preference.PreferringDataflow, latest=lambda: wanted),
    )
    parts = [part for batch in made.run() for part in batch["r_part"].to_pylist()]
    assert parts == sorted(parts, reverse=True) and len(parts) == 40


# Under skew a run holds no more than the tuples that are to be held need, and makes others in pieces.


def sizes(case: Case, among: str = "") -> int:
    """Return how many tuples the joins of all sets of relations have, with one ``among`` them, but of all."""
    names = case.spec.aliases
    found = 0
    sets = [inside for count in range(1, len(names)) for inside in combinations(names, count)]
    for inside in (each for each in sets if {among} - {""} <= {*each}):
        held = [str(e) for e in case.spec.equalities if {e.left.relation, e.right.relation} <= {*inside}]
        where = f" WHERE {' AND '.join(held)}" if held else ""
        sql = f"SELECT count(*) FROM {', '.join(f't_{name} {name}' for name in inside)}{where}"
        found += next(iter(answer_of(sql, case.tables)))[0]
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@examples(20)
@given(data=st.data())
def test_memory_under_skew_is_bounded(architecture: str, data: st.DataObject) -> None:
    """State is linear in the tuples that the architecture stores by definition; the buffer in nothing.

    That is: base tuples once each; with STAIRs, of each connected set of relations no more tuples than its
    join has, each in one STAIR (where state is moved, or stored as base tuples, in one at each join at its
    border); in flight, what arrived together, and for each step and each join that a part of a batch may be
    sent to one batch that probes and one of what it found, however many results there are. Queues hold what
    they may, and a batch more for each of them and for each step. Tuples of a relation that is not kept, and
    what they join to, wait besides for relations that have not ended, each for one of them (ProbeCompletion).
    No batch outgrows its size, in joins, products and scans: probes stop and go on later.
    """
    batch = data.draw(st.sampled_from([1, 2, 5, 32, 100]))
    case = data.draw(dense_cases(rows=32 if batch >= 32 else 12, count_only=True) | cases(4))
    own = {"architecture": [architecture], "batch_size": [batch], "online": [False]}
    options = data.draw(any_options(**own, migration=MIGRATIONS, intermediate=[False, True]))
    schedule = data.draw(schedules(case))
    limits = None
    if architecture == "stems" or (architecture != "static" and options.intermediate):
        room = st.builds(Backpressure, st.sampled_from([1, 3]), st.sampled_from([1, 10]))
        limits = data.draw(st.none() | room)
    chunk = max(3, batch)
    made = Run(case.spec, case.batches(chunk), options, schedule=schedule, clock=VirtualClock(), eddy=limits)
    found = flying(made.dataflow, batch) if isinstance(made.dataflow, EddyDataflow) else [0]
    event(f"in turn: {schedule.interleaved}, queues: {limits is not None}")
    assert rows_of(case, made) == case.expected(), case.sql()
    count = len(case.tables)
    rows = sum(table.num_rows for table in case.tables.values())
    is_moved = options.architecture == "stairs" or not options.intermediate
    stored = 0 if options.architecture == "stems" else (count - 1 if is_moved else 1) * sizes(case)
    assert made.figures().peak_state <= rows + stored
    most = (2 * count * (count - 1) + count) * batch
    if limits is not None:
        most = limits.buffer + 2 * count * ((limits.queue or 0) + batch) + count * (batch + chunk)
    if architecture == "stems" and schedule.interleaved and schedule.unbuilt is not None:
        most += sizes(case, case.spec.aliases[schedule.unbuilt])
    assert max(found) <= most


def test_state_is_rebuilt_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pieces of base tuples match, 400 pairs and 8,000 triples, is not in memory beside the state."""
    piece, n = 16, 20
    columns = {"r": "a", "s": "ab", "t": "bc"}
    tables: Tables = {alias: dict.fromkeys(keys, [1] * n) for alias, keys in columns.items()}
    tables["u"] = {"c": [1]}
    rig = Rig(tables, ["r.a = s.a", "s.b = t.b", "t.c = u.c"], piece, is_checked=False)
    way = {"s": "rs", "t": "st", "rs": "st", "st": "rs", "rst": "tu"}
    for alias in "rst":
        rig.arrive(" ".join(f"{alias}{i}" for i in range(1, n + 1)), **way)
    alive: WeakSet[TupleBatch] = WeakSet()
    most, right = [0], STAIR.matches

    def matches(*args: Any) -> TupleBatch:
        batch = right(*args)
        alive.add(batch)
        most[0] = max(most[0], sum(each.size for each in alive))
        return batch

    monkeypatch.setattr(stairs, "_PIECE", piece)
    monkeypatch.setattr(STAIR, "matches", matches)
    rig.stairs.rebuild(rig.stairs.tree, rig.route(**way))
    assert rig.stairs.recomputed >= n**3
    assert most[0] <= 2 * 2 * piece


# Back-pressure: queues in front of modules change when things are done, and never the answer.


@pytest.mark.parametrize("architecture", ["joins", "stairs"])
def test_queues_do_not_go_with_base_tuples_alone(architecture: str) -> None:
    """While ``r ⋈ s`` waits for ``t``, a tuple of ``t`` would meet it, and ``s``, which stands for it."""
    case, options = chain(1), Options(architecture=architecture, intermediate=False)
    with pytest.raises(InputError, match="intermediate=False"):
        Run(case.spec, case.batches(2), options, eddy=Backpressure(None, 20))


# What a run keeps of its decisions: true, bounded, and of every kind of run.


@pytest.mark.parametrize(
    "options",
    [
        *({"policy": name} for name in POLICY_NAMES if name != "fixed"),
        {"policy": "fixed", "order": ("o", "c")},
        {"architecture": "stairs", "online": True},
        {"architecture": "joins"},
        {"online": True},
        {"batch_size": 40},
    ],
    ids=str,
)
def test_the_last_reading_is_the_total(options):
    """Sums only grow, the last are those of the modules, and orders are of all tuples that were sent on."""
    figures = drifting(**options)
    totals = {(m.name, m.action): (m.tuples_in, m.tuples_out) for m in figures.modules}
    for reading in figures.readings:
        assert len(reading.points) >= 3
        assert reading.points[-1][1:3] == totals[reading.module, reading.action]
        assert all(list(column) == sorted(column) for column in zip(*reading.points, strict=True))
    joined = {name for (name, action), n in totals.items() if action in ("probe", "join") and n[0]}
    assert {reading.module for reading in figures.readings} == joined
    if not {"architecture", "online"} & options.keys():  # with SteMs
        made = sum(out for (_, action), (_, out) in totals.items() if action == "probe")
        assert made == figures.intermediate_tuples + figures.output_tuples > 0
    scanned = {name: out for (name, action), (_, out) in totals.items() if action == "scan"}
    assert scanned == {"Scan(l)": 60_000, "Scan(o)": 50, "Scan(c)": 50}
    largest = max(figures.traces, key=lambda each: each.tuples)
    assert (largest.source, largest.tuples) == ("l", 60_000)
    for each in figures.traces:
        places = [change.after for change in each.changes]
        assert places == sorted(places)
        assert places[0] == 0 and places[-1] <= each.tuples


def test_a_drift_is_seen_and_told_why():
    """The order turns half-way, because one dimension's share of matches fell and the other's rose."""
    (trace,) = drifting().traces
    change = next(c for c in trace.changes if c.after >= 30_000 and c.order == "o → c")
    shifts = {shift.module: shift for shift in change.why}
    assert set(shifts) == {"o", "c"}
    assert shifts["o"].selectivity[1] < shifts["o"].selectivity[0]


@pytest.mark.parametrize("decisions", [10, 1_000, 20_000])
def test_what_goes_to_and_fro_is_thinned(decisions):
    """However often minds change: what is kept is bounded, is of the whole run, and still alternates."""
    accounts = Statistics()
    trace = Trace(["a", "b", "c"], accounts)
    start = singleton(0)
    for number in range(decisions):
        chosen = Probe(1 + number % 2)
        trace.note_decision(start, [(chosen, 1.0)], 10 * number)
        for key in (chosen, (start, chosen)):
            accounts.update(key, 10, 5, 1e-6)
    (orders,) = trace.orders()
    assert orders.tuples == 10 * decisions
    assert len(orders.changes) <= module._MOST_CHANGES
    assert {change.order for change in orders.changes} == {"probe 1", "probe 2"}
    assert orders.changes[-1].after >= 0.4 * orders.tuples
    assert sum(len(each.points) for each in trace.readings()) <= module._MOST_POINTS + 2
