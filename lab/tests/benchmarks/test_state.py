"""The join state benchmark: its data, its plans, that all sides agree, and what is reported of a run."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from unittest.mock import Mock

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lab.benchmarks import state, state_data, state_migrate, state_sides
from lab.benchmarks.budget import Measured
from lab.benchmarks.state_cases import CASES, Arriving, Case
from lab.benchmarks.state_migrate import Migration
from lab.benchmarks.state_plans import Plans, left_deep
from millrace.engine.migration import default_migration
from millrace.errors import ExecutionError, InputError
from millrace.options import ALGORITHMS, MIGRATIONS

SCALE = 0.01
"""Of TPC-H; other tables are smaller still."""

each_case = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Keep all data in a folder that is gone afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "millrace"


def scale_of(case: Case) -> float:
    """A scale at which a case has some thousand tuples."""
    return {"drift_5m": 0.0006, "drift_50k": 0.06}.get(case.name, SCALE)


def arriving_of(case: Case) -> Arriving:
    """The case at a tiny scale, still with several chunks a table."""
    return Arriving(replace(case, chunk=250, every=250), case.files(scale_of(case)))


def answer(tables: dict[str, pa.Table], query: str) -> int:
    """DuckDB's."""
    with duckdb.connect() as connection:
        for alias, table in tables.items():
            connection.register(alias, table)
        return connection.execute(query).fetchone()[0]


def tables_of(arriving: Arriving) -> dict[str, pa.Table]:
    return {alias: pq.read_table(path) for alias, path in arriving.paths.items()}


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].on_spark and name != "fig7_1k"])
def test_every_side_of_a_race_agrees_with_duckdb(monkeypatch, name):
    """All architectures and policies count what DuckDB counts, and each is measured as often as said."""
    case = CASES[name]
    monkeypatch.setattr(Case, "scaled", lambda self, scale: replace(self, chunk=500, every=500))
    race = state.race(None, case, scale_of(case), 3, Mock())
    steady = {state.BEST, state.AGAIN, state.JOINS, state.STAIRS}
    assert set(race.sides) - race.others == steady
    assert {state.WORST, state.STEMS, state.DUCKDB} <= race.others
    if case.policies:
        policies = {f"stairs {name}" for name in MIGRATIONS if name != default_migration()}
        assert policies == {name for name in race.others if name.startswith("stairs")}
    arriving = Arriving(case, case.files(scale_of(case)))
    expected = answer(tables_of(arriving), case.sql())
    for name, side in race.sides.items():
        times = case.repeats * (2 if name in race.others else 3)
        assert len(side.seconds) == len(side.works) == times
        assert {work.rows for work in side.works} == {expected}


def test_a_drift_runs_on_spark_too(spark):
    """Spark, and Millrace with STAIRs on Spark, beside the sides of this process; all have figures."""
    race = state.race(spark, CASES["drift_50k"], 0.06, 1, Mock(), quick=True)
    assert {state.SPARK, state.ON_SPARK, state.DUCKDB} <= set(race.sides)
    assert race.sides[state.ON_SPARK].works[0].probes > 0
    assert "made" not in race.sides[state.SPARK].row()
    assert set(race.figures()) == {
        "drift_tuples_ratio_50k",
        "drift_time_ratio_50k",
        "drift_spark_ratio_50k",
        "drift_spark_inprocess_ratio_50k",
        "drift_duckdb_ratio_50k",
    }


def test_a_side_that_finds_something_else_fails_the_benchmark():
    """The number of rows is checked in every run."""
    side = state_sides.Side("joins", lambda: state_sides.Work(4), tuple)
    side.measure(4)
    with pytest.raises(ExecutionError, match="joins found 4 rows, DuckDB 5"):
        side.measure(5)


@each_case
def test_arrivals_are_the_tables(case):
    """What is read chunk by chunk is what the conditions leave of the files, in their order."""
    arriving = arriving_of(case)
    tables = tables_of(arriving)
    for alias, source in arriving.sources().items():
        batches = list(source)
        assert len(batches) >= -(-tables[alias].num_rows // arriving.case.chunk)
        assert max(batch.num_rows for batch in batches) <= arriving.case.chunk
        assert batches[0].schema == arriving.spec.relation(alias).schema
        columns = ", ".join(case.relations[alias])
        conditions = " AND ".join(["true", *map(str, case.conditions.get(alias, ()))])
        with duckdb.connect() as connection:
            connection.register(alias, tables[alias])
            expected = connection.sql(f"SELECT {columns} FROM {alias} WHERE {conditions}").to_arrow_table()
        assert pa.Table.from_batches(batches).to_pydict() == expected.to_pydict()


@each_case
def test_the_best_plan_does_least(case):
    """Of all left-deep plans none makes fewer tuples than the best, or more than the worst, when they run."""
    arriving = arriving_of(case)
    with state_sides.connected(arriving.paths) as connection:
        plans = Plans.of(arriving.case, lambda query: state_sides.counted(connection, query))
    made = {}
    for order in left_deep(arriving.case) if len(case.relations) == 3 else (plans.best, plans.worst):
        side = state_sides.by_millrace("static", arriving, "static", order)
        side.measure(plans.rows)
        made[order] = side.works[0].made
    if case.name == "triangle":
        # What a join makes and a closing conjunct rejects counts for the plan, though it is no tuple yet.
        assert plans.fewest < plans.most / 2
    else:
        assert (made[plans.best], made[plans.worst]) == (plans.fewest - plans.rows, plans.most - plans.rows)
        assert made[plans.best] == min(made.values()) and made[plans.worst] == max(made.values())


def test_left_deep_plans_follow_the_joins():
    """A chain of five has 8 of them, and a hub with four 24; nothing is joined by a cross product."""
    for name, number in (("path5", 8), ("star5", 24), ("triangle", 3), ("fig7", 2)):
        orders = list(left_deep(CASES[name]))
        assert len(set(orders)) == len(orders) == number
        ends = set(CASES[name].edges.values())
        for order in orders:
            for place in range(1, len(order)):
                assert any(frozenset((order[place], other)) in ends for other in order[:place])


def test_each_half_of_the_drift_joins_one_side():
    """5 matches a tuple within four standard errors, and none at all on the other side."""
    tables, half = state_data.drift(20_000), 10_000
    for first, (column, other) in ((0, ("a", "r")), (half, ("b", "t"))):
        mine = tables["s"].slice(first, half)
        theirs = tables[other]
        matches = answer({"s": mine, "x": theirs}, f"SELECT count(*) FROM s JOIN x USING ({column})")
        assert abs(matches / half - 5) < 4 * np.sqrt(5 / half) * np.sqrt(5)
        missing = {"a": "b", "b": "a"}[column], {"r": "t", "t": "r"}[other]
        query = f"SELECT count(*) FROM s JOIN x USING ({missing[0]})"
        assert answer({"s": mine, "x": tables[missing[1]]}, query) == 0


@pytest.mark.parametrize("make", [state_data.star, state_data.path])
def test_fan_outs_are_between_a_fifth_and_three(make):
    """Both some that shrink and some that grow what is joined."""
    tables = make(20_000)
    fans = []
    for one, other in combinations(tables, 2):
        if shared := set(tables[one].column_names) & set(tables[other].column_names):
            query = f"SELECT count(*) FROM x JOIN y USING ({shared.pop()})"
            fans.append(answer({"x": tables[one], "y": tables[other]}, query) / 20_000)
    assert len(fans) == 4
    assert min(fans) < 1 < max(fans)
    assert all(0.18 < fan < 3.2 for fan in fans)


def test_a_triangle_turns_half_way():
    """In either half each edge that is narrow in the other is wide, and every tuple is in some triangle."""
    tables, half = state_data.triangle(4000), 2000
    pairs = {"b": ("r", "s"), "c": ("s", "t"), "a": ("t", "r")}
    for first, wide in ((0, {"c"}), (half, {"a", "b"})):
        slices = {alias: table.slice(first, half) for alias, table in tables.items()}
        fans = {
            key: answer(slices, f"SELECT count(*) FROM {x} JOIN {y} USING ({key})") / half
            for key, (x, y) in pairs.items()
        }
        assert {key for key, fan in fans.items() if fan > 10} == wide
        assert all(fan < 2 for key, fan in fans.items() if key not in wide)
    query = CASES["triangle"].sql().replace("count(*)", "count(DISTINCT (r.a, r.b))")
    assert answer(tables, query) == answer(tables, "SELECT count(DISTINCT (a, b)) FROM r")


def test_lineitem_arrives_by_ship_date():
    """Nothing but its order differs from TPC-H's own."""
    paths = state_data.fig7(SCALE)
    ours = pq.read_table(paths["lineitem"])
    dates = ours["l_shipdate"].to_numpy()
    assert (dates[1:] >= dates[:-1]).all()
    theirs = pq.read_table(state_data.tpch_data.ensure(SCALE)["lineitem"], columns=ours.column_names)
    by = [(name, "ascending") for name in ours.column_names]
    assert ours.sort_by(by).to_pydict() == theirs.sort_by(by).to_pydict()


def test_data_are_made_once_whole_or_not_at_all(cache):
    """A failure leaves nothing behind; what is there is not made again; what lacks a table is refused."""
    table = pa.table({"a": [1, 2]})

    def broken():
        yield from {"r": table}.items()
        raise MemoryError

    class Broken(dict):
        items = staticmethod(broken)

    with pytest.raises(MemoryError):
        state_data.kept("twice", ("r", "s"), Broken)
    assert not list(cache.glob("*twice*")) and not list(cache.glob(".*twice*"))
    paths = state_data.kept("twice", ("r", "s"), lambda: {"r": table, "s": table})
    assert state_data.kept("twice", ("r", "s"), lambda: pytest.fail("made again")) == paths
    (cache / f"state-{state_data.VERSION}-twice" / "s.parquet").unlink()
    with pytest.raises(InputError, match=r"lacks s \(each as NAME.parquet\)"):
        state_data.kept("twice", ("r", "s"), lambda: {"r": table, "s": table})


@pytest.mark.parametrize("rows", [10, 3000])
def test_a_migration_moves_every_tuple_once_on_either_side(rows):
    """Each S tuple is demoted at S.b and promoted at S.a, where its one match in T is joined to it."""
    migration = Migration.of(rows)
    for _ in range(2):
        migration.measure()
    assert migration.expected == rows
    assert migration.work == {"rows": rows, "migrated": 2 * rows, "recomputed": rows, "peak_state": 7 * rows}
    assert len(migration.routing) == len(migration.settling) == 2
    assert [row["side"] for row in migration.rows()] == ["routing", "settle"]


def test_state_that_was_not_moved_fails_the_benchmark(monkeypatch):
    """What is held after settling is checked."""
    monkeypatch.setattr(state_migrate, "settle", lambda *arguments: 0)
    migration = Migration.of(50)
    with pytest.raises(ExecutionError, match=r"after settling .* tuples are held"):
        migration.measure()


def made_up(case: Case) -> state.Race:
    """A race in which STAIRs take 2 seconds and make 10 tuples, the best static plan 4 seconds and 100."""
    times = {state.BEST: 4.0, state.AGAIN: 4.0, state.JOINS: 1.6, state.STAIRS: 2.0, state.STEMS: 2.5}
    times[state.WORST] = 9.0
    if case.on_spark:
        times |= {state.DUCKDB: 4.0, state.SPARK: 8.0, state.ON_SPARK: 4.0}
    sides = {}
    for name, seconds in times.items():
        work = state_sides.Work(7, intermediate=6, recomputed=4) if name == state.STAIRS else None
        side = state_sides.Side(name, tuple, tuple)
        side.seconds, side.works = [seconds] * 3, [work or state_sides.Work(7, intermediate=100)] * 3
        sides[name] = side
    order = tuple(case.relations)
    return state.Race(
        case, Plans(7, order, order[::-1], 107, 207), sides, frozenset((state.WORST,)), state.STAIRS
    )


def test_the_figures_of_all_cases():
    """Every target has its figure, and the ratios are those of the medians."""
    migration = Migration({}, 7, [2.0, 2.0], [3.0, 3.0], {"migrated": 14})
    zeros = dict.fromkeys(Measured.__dataclass_fields__, 0)
    measured = [Measured(**zeros | {"algorithm": name, "ratio": i}) for i, name in enumerate(ALGORITHMS, 1)]
    outcome = state._outcome([made_up(case) for case in CASES.values()], migration, measured, 1.0, 5)
    assert set(state._TARGETS) == set(outcome.targets) <= set(outcome.figures)
    for ending in ("", "_50k"):
        assert outcome.figures[f"drift_tuples_ratio{ending}"] == pytest.approx(0.1)
        assert outcome.figures[f"drift_time_ratio{ending}"] == 0.5
        assert outcome.figures[f"drift_spark_ratio{ending}"] == 0.5
        assert outcome.figures[f"drift_spark_inprocess_ratio{ending}"] == 0.25
        assert outcome.figures[f"drift_duckdb_ratio{ending}"] == 0.5
    assert outcome.figures["fig7_static_ratio"] == 0.5
    assert outcome.figures["eddyjoins_worst_ratio"] == 1.25
    assert outcome.figures["auto_worst_ratio"] == 1.0
    assert outcome.figures["migrate_ratio"] == 1.5
    assert outcome.figures["budget_peak_ratio"] == len(ALGORITHMS)
    assert outcome.figures["aa_ratio"] == pytest.approx(1.0)
    assert len(outcome.rows) == sum(len(made_up(c).sides) for c in CASES.values()) + 2 + len(ALGORITHMS)
