"""Benchmarks: races are fair, wrong answers fail them, and each command runs at its smallest size."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lab.bench import micro, robust
from lab.bench.costly import FILTERS, Truth
from lab.bench.harness import Ran, Run, Target, geomean, turned
from lab.joins import duckdb_counts
from lab.soak import flatness
from millrace.errors import ExecutionError

pytestmark = pytest.mark.nightly

SMALL = {
    ("sql", "q03,stairs,tiny_tables", "0.001"): {"aa_ratio", "queries_equal", "shapes_equal"},
    ("sql", "routing,q05", "0.001"): {"routing_ratio", "routing_worst_ratio"},
    ("sql", "growth,q03", "0.001"): {"growth_ratio", "memory_ratio", "larger_ratio", "aa_ratio"},
    ("pipelines", "steps,written_star,csv", "0.001"): {"pipelines_equal", "pipelines_worst_ratio"},
    ("predicates", "f", "0.001"): {"f_calls_oracle_ratio", "f_time_oracle_ratio", "f_time_spark_ratio"},
    ("robust", "triangle", "0.001"): {"robust_worst_ratio", "robust_default_ratio", "robust_tuples_ratio"},
    ("state", "star5,migrate", "0.001"): {"star5_static_ratio", "eddyjoins_worst_ratio", "migrate_ratio"},
    ("streams", "two_way,q3,q9", "0.001"): {"two_way_ratio", "q3_state_ratio", "q9_ratio"},
    ("access", "naive,hybrid", "0.01"): {"naive_udf_ratio", "hybrid_worst_ratio", "requests_per_key"},
    ("prefer", "ordered,scattered", "0.001"): {"ordered_wanted", "scattered_total_ratio", "aa_ratio"},
    ("micro", "1m,exchange,start", "0.001"): {"duckdb_ratio_1m", "row_exchange_ratio", "first_join_s"},
}


def run():
    """One of two rounds, without a session."""
    return Run((), 1.0, 2)


def lab(*arguments, expected):
    """Run a command, which ends with the code expected; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", *arguments], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_side_runs_once_a_round_in_turning_order():
    """Each side is first, and each order of two sides occurs both ways."""
    rounds = [turned("abc", number) for number in range(6)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert {one[0] for one in rounds} == {"a", "b", "c"}
    assert {one.index("a") < one.index("b") for one in rounds} == {True, False}


def test_a_race_warms_up_once_and_knows_its_own_seconds():
    """The control is not warmed up again; seconds that a side took itself count, and notes become rows."""
    calls = []
    side = lambda: calls.append(1) or Ran(7, note={"calls": len(calls)}, seconds=2.0)  # noqa: E731
    running = run()
    times = running.race("case", {"one": side}, control="one")
    assert len(calls) == 1 + 2 * 2 and running.controls == [1]
    assert sorted(note["calls"] for side in ("one", "one again") for note in times.notes[side]) == [
        2,
        3,
        4,
        5,
    ]
    assert [row["calls"] for row in times.rows()] == [times.note(side, "calls") for side in times.notes]


@pytest.mark.parametrize("answer", [None, 4])
def test_wrong_answers_end_a_race(answer):
    """Of a side that differs from the first one, or from what is known; also after the warm-up."""
    with pytest.raises(ExecutionError, match="case"):
        run().race("case", {"one": lambda: 3, "other": lambda: 4}, answer=answer)
    later = iter([3, 3, 5])
    with pytest.raises(ExecutionError, match="case"):
        run().race("case", {"one": lambda: 3, "other": lambda: next(later)})


def test_targets():
    """Those that are missed are named; NaN misses them; nothing has no mean."""
    found = run()
    found.figures, found.targets = (
        {"ratio": 1.5, "free": 3},
        {"ratio": Target(high=1.3), "none": Target(low=1)},
    )
    assert [sentence.partition(",")[0] for sentence in found.missed()] == ["ratio is 1.500"]
    assert not Target(high=1).met(math.nan)
    assert geomean([0.5, 2.0]) == pytest.approx(1.0) and math.isnan(geomean([]))


def test_the_kernels_join_counts_what_duckdb_counts():
    """The timed join gives the right number of matches, with any batch size."""
    left, right = micro.keys(20_000)
    with duckdb_counts({"l": pa.table({"k": left}), "r": pa.table({"k": right})}) as count:
        expected = count("SELECT count(*) FROM l JOIN r USING (k)")
    assert [micro.symmetric_join(left, right, batch) for batch in (10_000, 333)] == [expected, expected]


@pytest.mark.parametrize("name", FILTERS)
def test_the_oracles_functions_do_what_it_counts(name):
    """Functions say of a row what the truth says, and no order of a phase does less."""
    case = FILTERS[name].scaled(0.01)
    ids = np.arange(0, case.rows, case.every)
    says = [member.truth(ids, case.phase(ids)) for member in case.members]
    for function, truth in zip(case.functions(free=True), says, strict=True):
        found = function(pd.Series(ids)) if case.kind == "pandas" else [function(int(n)) for n in ids]
        assert np.array_equal(np.asarray(found, bool), truth)
    known = Truth.of(case)
    assert known.kept[0] == np.logical_and.reduce(says).sum()
    assert sum(known.stage_calls) == sum(known.calls)
    assert case.work(known.calls) <= case.work([len(ids)] * len(case.members))


def test_there_are_twenty_trees_and_five_cycles():
    """What is acyclic has as many joins as relations but one."""
    made = list(robust.cases(0.001))
    assert sum(len(case.joins) == len(case.tables) - 1 for case in made) == 20 and len(made) == 25


def test_growth_shows_and_the_start_does_not_count():
    """Of memory: the last tenth over the second tenth."""
    assert flatness([9.0, *[1.0] * 19]) == 1.0 and flatness([1.0] * 18 + [2.0, 2.0]) == 2.0


@pytest.mark.slow
@pytest.mark.parametrize(("bench", "cases", "scale"), SMALL, ids=str)
def test_a_benchmark_runs_at_its_smallest_size(tmp_path, bench, cases, scale):
    """Its document has the figures; nobody should believe their values."""
    path = tmp_path / "figures.json"
    lab("bench", bench, "--cases", cases, "--scale", scale, "--json", f"{path}", expected=0)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["bench"], document["scale"]) == (bench, float(scale))
    assert set(document["figures"]) >= SMALL[bench, cases, scale], document["figures"]
    assert document["rows"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [("speed",), ("state", "--cases", "fig99"), ("state", "--rounds", "2"), ("state", "--scale", "0")],
    ids=str,
)
def test_wrong_usage_ends_with_2(wrong):
    """Before anything runs."""
    lab("bench", *wrong, expected=2)
