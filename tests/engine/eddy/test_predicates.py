"""Users' predicates in the eddy: whatever the route, the rows are those of a plain Python filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, strategies as st

from lab.queues import Backpressure
from millrace.engine.eddy.run import Run
from millrace.engine.operators.udf_selection import UdfSelection
from millrace.engine.plan.expressions import Call, Column, ColumnRef
from millrace.errors import ExecutionError, PredicateError
from millrace.options import POLICY_NAMES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import ROW, filtering, numbered, run as run_block
from tests.engine.eddy.oracle import KINDS, block, having, of_kind
from tests.engine.laws import examples

TRUTHS = (True, False, None, "raise")


def raising(*_):
    raise ValueError("my own")


@dataclass
class Table:
    """A predicate that looks its answers up, and counts for which rows it is asked."""

    answers: Sequence[object]
    kind: str = "row"
    on_error: str = "fail"
    deterministic: bool = True
    name: str = "p"

    def __post_init__(self) -> None:
        self.asked: list[int] = []

    def one(self, row: int) -> bool | None:
        self.asked.append(row)
        if self.answers[row] == "raise":
            raise ValueError(f"row {row}")
        return self.answers[row]

    def call(self, column: Column = ROW) -> Call:
        how = {"deterministic": self.deterministic, "on_error": self.on_error}
        return Call(PredicateSpec(self.name, of_kind(self.kind, self.one), self.kind, **how), (column,))


def kept(eddy: Run) -> list[bool]:
    """Run it and return the mask of all rows, in their order."""
    return [passes for mask in eddy.run() for passes in mask.to_pylist()]


def run(tables: Sequence[Table], rows: int, arrival: int = 1000, **options: object) -> list[bool]:
    return kept(filtering(numbered(rows), [table.call() for table in tables], arrival, **options))


def calling(function: Callable[..., Any], kind: str = "row", column: str = "row", **how: Any) -> Call:
    return Call(PredicateSpec("p", function, kind, **how), (Column(ColumnRef("t", column)),))  # type: ignore[arg-type]


def expected(tables: Sequence[Table], rows: int) -> list[bool] | None:
    """Return what a plain filter keeps; None where it fails: something raised that nothing else rejects."""
    kept = []
    for row in range(rows):
        answers = {
            None if t.answers[row] == "raise" and t.on_error == "null" else t.answers[row] for t in tables
        }
        kept.append(not answers & {False, None})
        if kept[-1] and "raise" in answers:
            return None
    return kept


PLAINLY = (100, 64, "fixed", 0, None)


@st.composite
def filters(draw: st.DrawFn) -> tuple[list[Table], int]:
    """Draw up to four predicates over up to 60 rows, mostly rejecting what raises so that both ends are met.

    Now and then there are about as many as a machine word has bits, or far more; few of them reject anything.
    """
    rows = draw(st.integers(0, 60))
    if draw(st.integers(0, 29)) == 0:
        rows = min(rows, 20)
        random, many = np.random.default_rng(draw(st.integers(0, 99))), draw(st.sampled_from([64, 65, 200]))
        drawn = random.choice(np.array(TRUTHS, object), (many, rows), p=[0.93, 0.01, 0.01, 0.05])
        return [Table(answers, "row", "null") for answers in drawn.tolist()], rows
    weights = draw(
        st.sampled_from([(True, False), TRUTHS, (True, True, True, False, "raise"), (True, "raise")])
    )
    table = st.builds(
        Table,
        st.lists(st.sampled_from(weights), min_size=rows, max_size=rows),
        st.sampled_from(KINDS),
        st.sampled_from(["fail", "null"]),
        st.sampled_from([True, True, True, False]),
    )
    return draw(st.lists(table, min_size=1, max_size=4)), rows


@examples(120)
@given(
    filters(),
    st.sampled_from([1, 9, 100]),
    st.sampled_from([1, 2, 7, 64]),
    st.sampled_from(POLICY_NAMES),
    st.integers(0, 3),
    st.none() | st.builds(Backpressure, st.sampled_from([None, 1, 3]), st.sampled_from([1, 5, 40])),
)
@example(([Table([True, "raise"]), Table([True, False], "pandas")], 2), *PLAINLY)
@example(([Table(["raise", "raise"], "arrow"), Table([False, False])], 2), *PLAINLY)
# Of a call for several rows that raised, what it says of one of them is only known in the end.
@example(([Table(["raise", "raise"]), Table(["raise", "raise"], "pandas", "null")], 2), *PLAINLY)
@example(([Table(["raise", "raise"]), Table([False, "raise"], "pandas"), Table([True, False])], 2), *PLAINLY)
def test_rows_are_those_of_a_plain_filter(drawn, arrival, batch_size, policy, seed, limits):
    """Any data, any kinds, raising and null-returning ones, any batch size: the same rows, or the error.

    Under back-pressure tuples of several batches are on their way at once, each marked in its own mask. The
    whole run can be repeated: decisions depend on the seed, and on nothing else but what was seen.
    """
    rows = drawn[1]
    how = {"policy": policy, "batch_size": batch_size, "seed": seed, "limits": limits, "reoptimize_every": 7}

    def asked() -> list[list[int]]:
        tables = [replace(table) for table in drawn[0]]
        wanted = expected(tables, rows)
        fails = pytest.raises(ExecutionError, match="predicate 'p' raised ValueError")
        with fails if wanted is None else nullcontext():
            assert run(tables, rows, arrival, **how) == wanted
        return [table.asked for table in tables]

    assert asked() == asked()


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_predicate_that_is_not_deterministic_keeps_its_place(policy):
    """It is asked exactly for the rows that those before it pass, in any policy."""
    numbers = np.random.default_rng(5).random((3, 2000)) < 0.5
    first, pinned, last = (Table(list(map(bool, n))) for n in numbers)
    pinned.deterministic = False
    run([first, pinned, last], 2000, policy=policy)
    assert sorted(pinned.asked) == np.flatnonzero(numbers[0]).tolist()
    assert sorted(last.asked) == np.flatnonzero(numbers[0] & numbers[1]).tolist()


@pytest.mark.parametrize(("masked", "shown"), [(False, "row=20"), (True, r"row=\*\*\*")])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_names_the_predicate_the_row_and_where_it_was_raised(kind, masked, shown):
    """The first row that nothing else rejects is told, with the original traceback; values can be masked."""
    answers = ["raise" if row in (7, 20, 30) else True for row in range(50)]
    tables = [Table(answers, kind, name="picky"), Table([row != 7 for row in range(50)])]
    with pytest.raises(ExecutionError, match=rf"'picky' raised ValueError: row 20[\s\S]*{shown}") as caught:
        run(tables, 50, mask_values=masked)
    assert "Traceback" in str(caught.value) and "in one" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "function", "told"),
    [
        ("pandas", lambda x: x.head(1) > 0, "1"),
        ("pandas", lambda x: x, "expected"),
        ("pandas", lambda x: True, "bool"),
        ("arrow", lambda x: x, "int64"),
        ("arrow", lambda x: pa.array([True]), "1"),
        ("arrow_iter", lambda batches: iter(()), "no batch"),
    ],
)
def test_what_is_no_truth_value_is_refused(kind, function, told):
    """Other values than booleans, and too few of them, are an error that names the predicate."""
    with pytest.raises(PredicateError, match=rf"'p'[\s\S]*{told}"):
        kept(filtering(numbered(3), [calling(function, kind)]))


def joined(policy: str, stream: str | None, **how: object) -> tuple[list[int], int]:
    """Join 300 tuples of ``r`` with 1,000 of ``s`` that meet a third of them; ask about the tuples of ``r``.

    Returns for which rows of ``r`` the predicate was asked, and the number of results.
    """
    keys = {"r": range(300), "s": [i % 100 for i in range(1000)]}
    tables = {alias: pa.table({"k": pa.array(own, pa.int64())}) for alias, own in keys.items()}
    table = Table([row % 2 == 0 for row in range(300)])
    call = table.call(Column(ColumnRef("r", "k")))
    case = having(block(tables, ["r.k = s.k"], count_only=True), call)
    rows, _ = run_block(case, Options(policy=policy, batch_size=64, **how), stream=stream, chunk=50)
    ((count,),) = rows
    return table.asked, count


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_a_predicate_of_one_relation_is_asked_once_for_a_base_tuple(policy, online):
    """Before or after the join, and however many tuples of the join contain it."""
    asked, count = joined(policy, None, online=online)
    assert count == 500
    assert len(asked) == len(set(asked))
    assert set(range(100)) <= set(asked) <= set(range(300))


def test_a_predicate_runs_before_or_after_the_join():
    """A static order asks about all that is built; behind the join only those that matched are left."""
    assert len(joined("fixed", "s")[0]) == 300
    assert sorted(joined("rank", "s")[0]) == list(range(100))


@pytest.mark.broken_rule
def test_forgetting_what_was_asked_before_building_is_caught(monkeypatch):
    """The test above sees a module that asks again."""
    monkeypatch.setattr(UdfSelection, "remember", lambda self, built: None)
    asked, _ = joined("fixed", "s")
    assert len(asked) > len(set(asked))


def odd_rows() -> pa.RecordBatch:
    """Return rows of which one has a date beyond Python's calendar, and one bytes that are no UTF-8."""
    days = pa.array([1, 3_000_000, 2], pa.int32()).view(pa.date32())
    return pa.record_batch([days, pa.array([b"a", b"b", b"\xff"]).view(pa.string())], ["day", "text"])


@pytest.mark.parametrize(
    ("row", "column"),
    [
        (odd_rows().slice(1, 1), "day"),
        (odd_rows().slice(2), "text"),
        (pa.record_batch([["x" * 5000]], ["text"]), "text"),
    ],
    ids=["beyond Python's calendar", "no UTF-8", "a page of text"],
)
def test_a_users_exception_is_told_whatever_the_row_has(row, column):
    """Also if the row that is shown has a value that Python does not have; a long one is cut."""
    with pytest.raises(ExecutionError, match="'p' raised ValueError: my own") as caught:
        kept(filtering(row, [calling(raising, "arrow", column)]))
    assert len(str(caught.value)) < 1500


async def _waiting(value: object) -> bool:
    return True


@pytest.mark.parametrize(("column", "bad"), [("day", 1), ("text", 2)])
@pytest.mark.parametrize(("function", "kind"), [(lambda value: True, "row"), (_waiting, "async")])
def test_a_value_that_python_does_not_have_concerns_its_row_only(column, bad, function, kind):
    """A function of Python values cannot be asked about it: an error that names both, or no match."""
    assert kept(filtering(odd_rows(), [calling(function, kind, column, on_error="null")])) == [
        n != bad for n in range(3)
    ]
    with pytest.raises(ExecutionError, match=rf"'p' raised \w+Error[\s\S]*{column}="):
        kept(filtering(odd_rows(), [calling(function, kind, column, on_error="fail")]))
