"""The shapes that are hard to divide, under a budget that they exceed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lab.bench import budget
from millrace.engine.operators.beside import Marks
from millrace.engine.plan.expressions import Call, Column, ColumnRef, Exists, LeftJoin, Or
from millrace.engine.plan.spec import OutputColumn, RelationSpec
from millrace.engine.spill import algorithms, partitions
from millrace.engine.spill.folder import SpillFile, SpillFolder
from millrace.engine.spill.spilling import SpillingEddy
from millrace.errors import ExecutionError, InputError, OptionError
from millrace.options import ALGORITHMS, ARCHITECTURES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import chain, chained, run
from tests.engine.eddy.oracle import Case, block, compare
from tests.gate import sampled

spilled = partial(run, of=SpillingEddy)
BUDGET = 3_000


def within(folder: Path, algorithm: Any, budget: int = BUDGET, batch_size: int = 16, **how: Any) -> Options:
    """Return a tight budget, if nothing else is said, and where to spill."""
    place = {"algorithm": algorithm, "spill_folder": str(folder), "batch_size": batch_size}
    return Options(memory_budget=budget, **place, **how)


@pytest.fixture(params=ALGORITHMS)
def options(request, tmp_path):
    """A tight budget for each algorithm; what a test does with it leaves no file behind."""
    yield within(tmp_path, request.param)
    assert list(tmp_path.rglob("*")) == []


UNREAD = {alias: (1 / 0 for _ in "x") for alias in "abc"}
"""Sources that fail when they are read."""


def large(rows: int, keys: int, last: int, share: float = 0.0, **how: Any) -> Case:
    """Return a chain of which ``a`` and ``b`` have a key with a share of the rows; ``c`` has others."""
    draw = np.random.default_rng(7)

    def columns(alias: str, own: str) -> dict[str, np.ndarray]:
        found = {key: draw.integers(0, keys, last if alias == "c" else rows) for key in own}
        for values in found.values() if alias != "c" else ():
            values[draw.permutation(rows)[: int(share * rows)]] = 0
        return found

    return chained(columns, **how)


CASE = large(120, 40, 60)
"""Its base tuples take more than the budget."""


NOTHING = pa.Table.from_batches([pa.record_batch([pa.nulls(30)], ["n"]).select([])])
SHAPES: dict[str, tuple[Case, int, Callable[[Any], bool]]] = {
    "a chain that does not fit": (CASE, BUDGET, lambda tally: tally.bytes_written and tally.bytes_read),
    # No hash divides tuples of a single key: rows are cut instead.
    "a heavy key": (large(26, 1, 13, count_only=True), 800, lambda tally: tally.splits_by_rows),
    # Without any key there is nothing to hash; the streamed relation takes no state, so the other may fit.
    "a cross product": (
        block({alias: pa.table({"x": range(60)}) for alias in "ab"}, [], count_only=True),
        1_200,
        lambda tally: not (tally.bytes_written and tally.splits_by_key),
    ),
}
"""Blocks with their budgets, and what has to be done to keep to these."""


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_that_are_hard_to_divide(options, shape):
    """They are spilled, read back, and complete; SHJ with all sources in turn has results before."""
    case, budget, fits = SHAPES[shape]
    for online in (False, True):
        rows, eddy = spilled(case, replace(options, memory_budget=budget, online=online))
        assert rows == case.expected()
        assert fits(eddy.tally)
    assert options.algorithm != "shj" or eddy.tally.in_memory.calls == 1


def test_a_cross_product_of_relations_without_columns(options):
    """Only the number of their tuples counts."""
    tables = {"a": NOTHING, "b": pa.table({"y": range(100)}), "c": pa.table({"z": [1, 1]})}
    rows, _ = spilled(block(tables, [], count_only=True), replace(options, memory_budget=1_200))
    assert rows == {(30 * 100 * 2,): 1}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_fits_is_not_spilled(algorithm, tmp_path):
    """SHJ and hybrid write nothing where a budget suffices; Grace and sort-merge write everything once."""
    case = chain(3)
    everything = sum(table.num_rows for table in case.tables.values())
    rows, eddy = spilled(case, within(tmp_path, algorithm, 10**6))
    assert rows == case.expected()
    written = sum(flow.tuples_in for flow in eddy.tally.written.values())
    assert written == (0 if algorithm in ("shj", "hybrid") else everything)


@pytest.mark.broken_rule
def test_partitions_that_are_probed_most_stay_in_memory(tmp_path, monkeypatch):
    """The stream looks for keys of the largest partition, which had gone to a file first, and comes back."""
    keys = pa.array(range(2000), pa.int64())
    numbers = partitions.numbered(keys.to_numpy(), 0, 4)
    hot = [k for k, number in enumerate(numbers) if number == 2]
    built = pa.table({"k": list(range(2000)) + hot[: len(hot) // 5]}, pa.schema([("k", pa.int64())]))
    draw = random.Random(3)
    probing = [draw.choice(hot) if draw.random() < 0.9 else draw.randrange(2000) for _ in range(12_000)]
    probing[:100] = [k for k, number in enumerate(numbers) if number == 0][:100]  # no batch alone tells
    case = block({"a": built, "s": pa.table({"k": pa.array(probing, pa.int64())})}, ["a.k = s.k"])
    options = within(tmp_path, "hybrid", 64_000, 256)

    def written() -> dict[int, int]:
        monkeypatch.setattr(algorithms, "partition_count", lambda *_: 4)
        rows, eddy = spilled(case, options, chunk=64, stream="s")
        assert rows == case.expected()
        return {relation: flow.tuples_in for relation, flow in eddy.tally.written.items()}

    followed = written()
    monkeypatch.setattr(partitions, "most_probed", lambda resident, *_: set(resident))
    by_size = written()
    assert by_size[1] > 0.8 * 12_000 > 3 * followed[1]
    assert followed[0] <= 2 * by_size[0] + len(hot) * 2


def test_all_partitions_in_memory_may_be_exchanged(tmp_path, monkeypatch):
    """A relation without a column in the class stays there for those that come back."""
    draw, exchanged = random.Random(3), []
    keys, others = ([draw.randrange(n) for _ in range(6000)] for n in (2000, 5))
    tables = {"a": {"k": range(2000)}, "c": {"j": range(5)}, "s": {"k": keys, "j": others}}
    case = block({alias: pa.table(columns) for alias, columns in tables.items()}, ["a.k = s.k", "s.j = c.j"])

    def others_of(resident, _, sizes, __):
        exchanged.append(len(resident))
        return {min(set(range(4)) - set(resident), key=sizes.__getitem__)}

    monkeypatch.setattr(algorithms, "partition_count", lambda *_: 4)
    monkeypatch.setattr(partitions, "most_probed", others_of)
    options = within(tmp_path, "hybrid", 64_000, 256)
    rows, _ = spilled(case, options, chunk=256, stream="s")
    assert exchanged and rows == case.expected()


def test_figures_tell_what_was_spilled(options):
    """Bytes and batches by relation, and joins from disk; sources count once."""
    figures = spilled(CASE, options)[1].figures(3)
    assert figures.cell == 3
    assert figures.spilled_bytes == sum(m.bytes for m in figures.modules if m.action == "write") > 0
    assert figures.returned_bytes == sum(m.bytes for m in figures.modules if m.action == "read") > 0
    scanned = {m.name: m.tuples_out for m in figures.modules if m.action == "scan"}
    assert scanned == {f"Scan({alias})": table.num_rows for alias, table in CASE.tables.items()}
    assert figures.output_tuples == CASE.expected().total()
    assert any(m.action == "partition" and m.calls for m in figures.modules)


@pytest.mark.parametrize("bound", [None, 500])
def test_a_run_has_no_more_than_arrows_texts_can(tmp_path, monkeypatch, bound):
    """However large the budget is, so many bytes at most are put together to be sorted."""
    if bound is not None:
        monkeypatch.setattr(algorithms, "_RUN_BYTES", bound)
    case = CASE
    rows, eddy = spilled(case, within(tmp_path, "sort_merge", 1 << 34))
    assert rows == case.expected()
    assert (eddy.tally.bytes_written / eddy.tally.files < 1_000) == (bound is not None)


# Spill files: gone in every case, and clear errors when something is wrong with them or with a budget.


def test_files_go_as_soon_as_they_have_been_joined(options, tmp_path):
    """While results come, fewer and fewer are left; but a sorted run reaches to the last range of keys."""
    eddy = SpillingEddy(CASE.spec, CASE.batches(4), options)
    counts = [len(list(tmp_path.rglob("*"))) for _ in eddy.run()]
    assert (counts[-1] < max(counts)) == (options.algorithm != "sort_merge")


@pytest.mark.parametrize(
    ("alias", "error"), [("a", OSError("it failed")), ("b", KeyboardInterrupt()), ("c", OSError("it failed"))]
)
def test_nothing_is_left_after_a_failure(options, alias, error):
    """A source that fails half-way, or Ctrl-C; no file stays open for as long as the failure is looked at."""
    sources = CASE.batches(4)

    def failing():
        yield from sources[alias][:-1]
        raise error

    eddy = SpillingEddy(CASE.spec, {**sources, alias: failing()}, options)
    with pytest.raises(type(error)) as failure:
        list(eddy.run())
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert failure.tb and not [name for name in opened if "millrace-spill-" in name]


def test_nothing_is_left_when_the_consumer_stops_early(options, tmp_path):
    results = SpillingEddy(CASE.spec, CASE.batches(4), options).run()
    next(results)
    assert any(tmp_path.iterdir())
    results.close()


@pytest.mark.parametrize(
    ("room", "named"),
    [(0, r"no space is left in .*millrace-spill.*spill_folder"), (3, "after [1-9][0-9,]* bytes")],
)
def test_a_full_disk(options, monkeypatch, room, named):
    """The error tells the folder, what had been written and what would help. The device is really full."""
    true, opened = SpillFolder.open, iter(range(room))

    def full(self, path):
        return pa.OSFile("/dev/full", "wb") if next(opened, None) is None else true(self, path)

    monkeypatch.setattr(SpillFolder, "open", full)
    with pytest.raises(ExecutionError, match=named):
        spilled(CASE, options)


def refused(self, path):
    raise OSError(errno.EIO, "Input/output error")


def vanished(self, stored, true=SpillFile.batch):
    Path(self.path).unlink(missing_ok=True)
    return true(self, stored)


@pytest.mark.parametrize(
    ("where", "name", "broken", "named"),
    [
        (SpillFolder, "open", refused, "Input/output error"),
        # Somebody cleans up the folder while the join runs.
        (SpillFile, "batch", vanished, "cannot be read back"),
    ],
)
def test_files_that_cannot_be_written_or_read(options, monkeypatch, where, name, broken, named):
    """The system's words are passed on."""
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(ExecutionError, match=named):
        spilled(CASE, options)


def test_a_budget_too_small_for_a_batch(options):
    with pytest.raises(OptionError, match=r"memory_budget is 100 bytes.*at least[\s\S]*batch_size to"):
        spilled(CASE, replace(options, memory_budget=100))


@pytest.mark.parametrize(
    ("name", "what"),
    [("missing", "No such file"), ("file", "Not a directory"), ("/proc", "'/proc'")],
)
def test_a_folder_that_cannot_be_used(tmp_path, name, what):
    """It is found before a source is read."""
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=what):
        list(SpillingEddy(CASE.spec, UNREAD, within(tmp_path / name, "hybrid")).run())


def test_a_relation_with_set_semantics_cannot_be_streamed(options):
    """As without a budget, and before a source is read."""
    with pytest.raises(InputError, match="set semantics"):
        SpillingEddy(large(120, 40, 60, distinct=("a",)).spec, UNREAD, options, stream="a")


# A memory budget holds whatever the join does under it: skew, every architecture, a stop at any moment.


LARGE_BUDGET = 1_500_000
RATIO = 1.1
"""Most bytes held over the budget."""


@pytest.mark.parametrize("online", sampled([False, True]))
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "stems"])
def test_intermediate_tuples_stay_within_the_budget(architecture, online, tmp_path):
    """A million of them would take many times the budget; base tuples and indexes a fraction of it.

    Eddies do without intermediate tuples; a static plan cannot, so its base tuples go to files.
    """
    case = large(4000, 4000, 4000, 0.25, count_only=True)
    policy = None if architecture == "static" else "fixed"
    options = Options(
        architecture=architecture, policy=policy, order=("a", "b", "c"), batch_size=1024, online=online
    )
    rows, plain = run(case, options, chunk=1000)
    assert rows == case.expected()
    assert plain.figures().intermediate_tuples > 500_000
    assert plain.figures().budget_peak_ratio == 0

    options = replace(options, memory_budget=LARGE_BUDGET, spill_folder=str(tmp_path), algorithm="shj")
    rows, eddy = spilled(case, options, chunk=1000)
    assert rows == case.expected()
    assert 0.2 < eddy.figures().budget_peak_ratio <= RATIO
    rows, eddy = spilled(case, replace(options, algorithm=Options().algorithm), chunk=1000)
    assert rows == case.expected()
    assert online or (eddy.tally.bytes_written > 0) == (architecture == "static")


@pytest.mark.parametrize(("architecture", "algorithm"), list(zip(ARCHITECTURES, ALGORITHMS, strict=True)))
def test_base_tuples_stay_within_the_budget(architecture, algorithm, tmp_path):
    """Those of all relations would take several times as much; by each architecture and algorithm."""
    case = large(30_000, 30_000, 30_000, 0.002, count_only=True)
    options = within(tmp_path, algorithm, LARGE_BUDGET, 8192, architecture=architecture)
    rows, eddy = spilled(case, options, chunk=4096)
    assert rows == case.expected()
    assert eddy.tally.bytes_written > 0
    assert 0.2 < eddy.figures().budget_peak_ratio <= RATIO


def beside(case: Case, kind: str, rows: int, keys: int, share: float = 0.0) -> Case:
    """Return a case that asks a relation ``e``, or is left-joined with it; some of its rows have one key."""
    draw = np.random.default_rng(8)
    key = draw.integers(0, keys, rows)
    key[draw.permutation(rows)[: int(share * rows)]] = 1
    table = pa.table({"k": pa.array(key, mask=key == 3), "x": draw.integers(0, 30_000, rows)})
    equal, less = compare("=", "a.k", "e.k", pa.int64()), compare("<", "b.j", "e.x", pa.int64())
    other = Exists("f", (compare("=", "c.j", "f.k", pa.int64()),))
    asks: dict[str, dict[str, Any]] = {
        "left": {"outer": (LeftJoin("e", (equal,), less),)},
        "semi": {"residuals": (Exists("e", (equal,), less),)},
        "anti": {"residuals": (Exists("e", (equal,), negated=True),)},
        "not in": {"residuals": (Exists("e", (equal,), negated=True, null_aware=True),)},
        "either": {"residuals": (Or((Exists("e", (equal,), less, negated=True), other)),)},
    }
    aliases = ("e", "f") if kind == "either" else ("e",)
    asked = tuple(RelationSpec(alias, table.schema, rows=rows) for alias in aliases)
    spec = replace(case.spec, beside=asked, **asks[kind])
    if kind == "left" and not spec.count_only:
        spec = replace(spec, output=(*spec.output, OutputColumn("e_x", ColumnRef("e", "x"))))
    return Case(spec, {**case.tables, **dict.fromkeys(aliases, table)})


@pytest.mark.parametrize(
    ("architecture", "algorithm", "kind"),
    [
        *zip(ARCHITECTURES, ALGORITHMS, ("left", "semi", "anti", "not in"), strict=True),
        ("stems", "hybrid", "either"),
    ],
)
def test_relations_beside_stay_within_the_budget(architecture, algorithm, kind, tmp_path):
    """One that is too large is joined by partition, a small one is kept; many rows may have one key."""
    options = within(tmp_path, algorithm, LARGE_BUDGET, 8192, architecture=architecture)
    join = large(3_000, 3_000, 3_000)
    for rows, share in ((1_000, 0.0), (40_000, 0.0), (40_000, 0.5)):
        case = beside(join, kind, rows, 3_000, share)
        found, eddy = spilled(case, options, chunk=4096)
        assert found == case.expected()
        figures = eddy.figures()
        wrote = any(m.name == "Spill(e)" and m.bytes for m in figures.modules)
        assert wrote == (rows > 1_000), figures.modules
        assert 0.1 < figures.budget_peak_ratio <= RATIO, (kind, rows, share)
        assert figures.output_tuples == found.total()
    assert not list(tmp_path.iterdir())


def test_a_users_predicate_waits_for_the_last_part(tmp_path):
    """What meets a relation part by part is asked about once, and not in every part."""
    case, calls = beside(CASE, "semi", 300, 1), list[int]()
    call = Call(PredicateSpec("p", lambda k: calls.append(k) is None, "row"), (Column(ColumnRef("a", "k")),))
    asking = replace(case.spec, residuals=(call, *case.spec.residuals))
    rows, eddy = spilled(Case(asking, case.tables), within(tmp_path, "hybrid", policy="fixed"))
    assert rows == case.expected()
    assert any(m.name == "Spill(e)" and m.action == "write" for m in eddy.figures().modules)
    assert len(calls) <= CASE.expected().total()


@pytest.mark.broken_rule
def test_tuples_remember_what_they_found_in_each_part(tmp_path, monkeypatch):
    """What no key divides comes in parts, and only the first of them has a match."""
    case = beside(CASE, "left", 300, 1)
    only_first = case.tables["e"].set_column(1, "x", pa.array([100] + 299 * [0]))
    case, options = Case(case.spec, {**case.tables, "e": only_first}), within(tmp_path, "hybrid")
    assert spilled(case, options)[0] == case.expected()
    monkeypatch.setattr(Marks, "add", lambda self, batch, matched: matched)
    assert spilled(case, options)[0] != case.expected()


# The promise: peak memory stays below the budget and a quarter more, whatever the state would take.


BYTES = 48 * budget.MEGABYTE


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", [a if a == "hybrid" else pytest.param(a, marks=pytest.mark.nightly) for a in ALGORITHMS]
)
def test_peak_memory_stays_within_the_budget(algorithm, tmp_path):
    """State of four times the budget, in a process of its own; the answer is DuckDB's."""
    found = budget.run(algorithm, BYTES, str(tmp_path), pool="system")
    with duckdb.connect() as connection:
        for alias, schema in budget.SCHEMAS.items():
            batches = budget.source(alias, budget.sizes(BYTES))
            connection.register(alias, pa.Table.from_batches(batches, schema))
        expected = connection.execute(
            "SELECT count(*), sum(a.v + b.w + c.x + strlen(a.text))::BIGINT "
            "FROM a, b, c WHERE a.k = b.k AND b.j = c.j"
        ).fetchone()
    assert (found.rows, found.checksum) == expected
    assert found.written > BYTES
    assert found.ratio <= 0.8, found
