"""The harness: turning orders, targets, the JSON format, equality of rows, the data."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import pytest
from rich.console import Console

from lab.benchmarks import harness, kernel, show, tpch_data
from lab.benchmarks.compare import difference
from lab.benchmarks.harness import Outcome, Target
from millrace.errors import InputError, OptionError

OUTCOME = Outcome(
    "tpch",
    0.1,
    5,
    {"ratio": 1.5, "aa": 2.0, "free": 3},
    [{"query": "q01", "ratio": 1.5, "equal": True}, {"query": "q02", "ratio": 1.0, "equal": False}],
    {"ratio": Target(high=1.3), "aa": Target(0.9, 1.1, informational=True)},
    ["a note"],
)


def test_every_side_runs_once_a_round_in_turning_order():
    """Each side is first, and each order of two sides occurs both ways."""
    ran: list[str] = []
    sides = {name: lambda name=name: ran.append(name) for name in "abc"}
    seconds = harness.interleave(sides, 6)
    rounds = [ran[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert {one[0] for one in rounds} == {"a", "b", "c"}
    assert {one.index("a") < one.index("b") for one in rounds} == {True, False}
    assert all(len(times) == 6 for times in seconds.values())


def test_statistics():
    """Medians, spreads and geometric means."""
    assert harness.median([3, 1, 2]) == 2
    assert harness.spread([1.0, 2.0, 3.0]) == 1.0
    assert harness.geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(harness.geomean([]))


def test_missed_targets_are_named_and_informational_ones_never():
    """Only targets that are meant as such fail a run; NaN fails them."""
    assert OUTCOME.missed() == ["ratio is 1.500, the target is ≤ 1.3"]
    assert not Target(high=1).met(math.nan)
    assert str(Target(22, 22)) == "= 22"


def test_the_json_format():
    """Exactly the documented keys, and numbers."""
    written = json.loads(json.dumps(OUTCOME.to_dict()))
    assert list(written) == ["bench", "versions", "scale", "rounds", "figures", "rows"]
    assert all(isinstance(value, int | float) for value in written["figures"].values())


def test_the_table_has_every_figure_and_note():
    """Rows, figures, targets, verdicts and notes are printed."""
    console = Console(width=160, record=True, quiet=False, file=None)
    with console.capture() as capture:
        show.show(OUTCOME, console)
    for text in ("q01", "NO", "≤ 1.3", "missed", "a note", "free"):
        assert text in capture.get()


def test_too_few_rounds_are_refused():
    """A median needs five."""
    with pytest.raises(OptionError, match="at least 5"):
        harness.check_rounds(4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")]),
        ([(1.0,), (math.nan,)], [(math.nan,), (1.0 + 1e-12,)]),
        ([(0.1 + 0.2, "x")], [(0.3, "x")]),
        ([(None, [1, 2])], [(None, [1, 2])]),
        ([], []),
    ],
)
def test_equal_rows(left, right):
    """Order does not matter, nor does the last bit of a float."""
    assert difference(left, right) is None


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([(1,), (1,)], [(1,)]),
        ([(Decimal("1.10"),)], [(Decimal("1.11"),)]),
        ([(1.0,)], [(1.001,)]),
        ([(None,)], [(0,)]),
        ([("a", 1.0), ("b", 2.0)], [("a", 2.0), ("b", 1.0)]),
    ],
)
def test_different_rows(left, right):
    """Multiplicity, decimals and nulls are exact, and floats belong to their row."""
    assert difference(left, right) is not None


def test_the_kernels_join_counts_what_duckdb_counts():
    """The timed join gives the right number of matches, with any batch size."""
    import duckdb
    import pyarrow as pa

    left, right = kernel.keys(20_000)
    tables = {"l": pa.table({"k": left}), "r": pa.table({"k": right})}
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        expected = connection.execute("SELECT count(*) FROM l JOIN r USING (k)").fetchone()[0]
    assert [kernel.symmetric_join(left, right, batch) for batch in (10_000, 333)] == [expected, expected]


def test_data_is_made_once(tpch_tiny):
    """A folder with all tables is used as it is."""
    from pathlib import Path

    folder = Path(tpch_tiny["orders"]).parent
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert tpch_data.ensure(0.01, folder) == tpch_tiny
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_folder_with_something_else_is_refused(tmp_path):
    """Nothing is overwritten."""
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not empty and lacks customer"):
        tpch_data.ensure(0.01, tmp_path)


def test_an_unknown_query_is_named():
    """What there is stands in the message."""
    with pytest.raises(InputError, match="expected q01 to q22, or stairs"):
        tpch_data.query_text("q23")
