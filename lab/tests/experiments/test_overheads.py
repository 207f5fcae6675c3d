"""Overheads: the Wisconsin tables, the queries, and the checks; no test looks at real time.

What is measured is replaced by a count of what the eddy and the static plan do: visits of modules, and
decisions of a policy. That is the same in every run.
"""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from lab.experiments.overheads import fig5, star, sweep
from lab.experiments.overheads.wisconsin import TUPLE_BYTES, wisconsin
from lab.experiments.registry import EXPERIMENTS
from millrace.engine.router.run_statistics import RunStatistics
from millrace.errors import ExecutionError

SMALL = {
    "overheads-fig5": {"tuples": 10_000, "rounds": 3},
    "overheads-fig6": {"tuples": 1000, "rounds": 3},
    "overheads-fig7": {"tuples": 10_000, "rounds": 3},
}
GENEROUS = 4.0
"""Times the static plan's count: visits and decisions are no seconds."""


@pytest.fixture
def counted(monkeypatch):
    """Let visits and decisions be time; what a delay would take is not waited for."""
    done = {"work": 0.0}

    def counting(function, weight):
        def count(*arguments, **named):
            done["work"] += weight
            return function(*arguments, **named)

        return count

    def once(sides, rounds):
        found = {}
        for name, run in sides.items():
            done["work"] = 0.0
            run()
            found[name] = done["work"]
        return found

    monkeypatch.setattr(RunStatistics, "visit", counting(RunStatistics.visit, 1.0))
    monkeypatch.setattr(RunStatistics, "decided", counting(RunStatistics.decided, 0.1))
    monkeypatch.setattr(fig5, "DELAYS", dict.fromkeys(fig5.DELAYS, 0))
    monkeypatch.setattr(star, "WAYS", (3,))
    monkeypatch.setattr(sweep, "_FEWEST", 20)
    monkeypatch.setattr(sweep, "medians", once)


def test_tables_are_those_of_the_benchmark():
    """244 bytes a tuple; unique1 and unique2 are keys, two, four and ten follow from unique1."""
    tenk1 = table = wisconsin(10_000, 3)
    assert tenk1.num_rows == 10_000
    assert sum(sum(b.size for b in c.chunk(0).buffers() if b) for c in table.columns) == (
        10_000 * TUPLE_BYTES + 3 * 4 * 10_001  # the strings' offsets are Arrow's own
    )
    found = duckdb.sql(
        """SELECT count(DISTINCT unique1), count(DISTINCT unique2), min(unique1), max(unique2),
                  bool_and(two = unique1 % 2 AND four = unique1 % 4 AND ten = unique1 % 10),
                  count(DISTINCT stringu1), count(DISTINCT stringu2), count(DISTINCT string4),
                  bool_and(length(stringu1) = 64 AND length(stringu2) = 64 AND length(string4) = 64)
           FROM tenk1"""
    ).fetchall()[0]
    assert found == (10_000, 10_000, 0, 9999, True, 10_000, 10_000, 4, True)
    assert table["unique2"].to_numpy().tolist() == list(range(10_000))
    assert table.equals(wisconsin(10_000, 3)) and not table.equals(wisconsin(10_000, 4))


@pytest.mark.parametrize("count", [True, False])
def test_star_joins_are_those_of_the_paper(count):
    """Both sides find what DuckDB finds, at every batch size."""
    tables = {alias: wisconsin(60, i) for i, alias in enumerate(("tenk1", "tenk2", "tenk3"))}
    tenk1, tenk2, tenk3 = tables.values()
    query = (
        "SELECT {} FROM tenk1, tenk2, tenk3 "
        "WHERE tenk1.unique2 = tenk2.unique2 AND tenk1.unique2 = tenk3.unique2"
    )
    rows = duckdb.sql(query.format("count(*)")).fetchall()[0]
    assert rows == (60,)
    block = sweep.Query("star", star.star(tables, count=count), tables, "joins")
    for batch in (7, 1000):
        for static in (True, False):
            block.side(batch, batch, 60, static=static)()
    if not count:
        assert len(star.star(tables, count=False).output) == len(duckdb.sql(query.format("*")).columns)
    assert pa.concat_tables([tenk1, tenk2, tenk3]).num_rows == 180


def test_a_wrong_number_of_rows_is_an_error():
    """A side that is fast because it is wrong is not measured."""
    tables = {alias: wisconsin(100, i) for i, alias in enumerate(("tenk1", "tenk2", "tenk3"))}
    tables["tenk2"] = tables["tenk2"].slice(0, 50)
    query = sweep.Query("star", star.star(tables, count=True), tables, "joins")
    with pytest.raises(ExecutionError, match="star found 50 rows, expected 100"):
        query.side(10, 10, 100)()


@pytest.mark.slow
@pytest.mark.parametrize("each", [e for i, e in EXPERIMENTS.items() if "overheads" in i], ids=lambda e: e.id)
def test_amortized_decisions_hold_and_single_ones_do_not(each, counted):
    """In counted work, an eddy with batches does about what a static plan does; without, far more."""
    each = replace(each, claims=tuple(replace(claim, high=GENEROUS) for claim in each.claims))
    outcome = each.run(each.settings(1, SMALL[each.id]))
    assert outcome.holds, outcome.checks
    assert all(ratio == 1.0 for name, ratio in outcome.figures.items() if name.endswith("_aa_ratio"))
    ablated = each.run(each.settings(1, SMALL[each.id], ablated=True))
    assert not any(check.holds for check in ablated.checks), ablated.checks


def test_a_delay_takes_its_time_and_keeps_what_is_below(monkeypatch):
    """The function is busy until its tuples' time is over."""
    ticks = iter(np.arange(0, 1, 1e-5).tolist())
    asked: list[float] = []

    def now() -> float:
        asked.append(next(ticks))
        return asked[-1]

    monkeypatch.setattr(fig5, "thread_time", now)
    kept = fig5.Delay(2, 10)(pa.array([0, 1, 2, 3]))
    assert kept.to_pylist() == [True, True, False, False]
    assert asked[-1] - asked[0] >= 4 * 10e-6


def test_sides_take_turns_and_short_ones_are_repeated(monkeypatch):
    """Medians of rounds, each side's time over its repetitions."""
    clock, ran = [0.0], []

    def side(name, seconds):
        def run():
            ran.append(name)
            clock[0] += seconds

        return run

    monkeypatch.setattr(sweep, "process_time", lambda: clock[0])
    found = sweep.medians({"slow": side("slow", 1.0), "fast": side("fast", 0.01)}, 3)
    assert found == {"slow": pytest.approx(1.0), "fast": pytest.approx(0.01)}
    assert ran.count("slow") == 2 + 3 and ran.count("fast") == 2 + 3 * 3
    first = [name for i, name in enumerate(ran[4:]) if i == 0 or ran[3 + i] != name]
    assert first[0] == "slow"
