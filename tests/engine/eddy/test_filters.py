"""Transfer of filters: what has no match in a relation that was read before is not stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.eddy import ingest
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import Exists, Not
from millrace.engine.plan.spec import RelationSpec
from millrace.engine.spill.run_of import run_of as spilling_run_of
from millrace.errors import InputError
from millrace.options import Options
from tests.engine.eddy.blocks import run, star, stream
from tests.engine.eddy.oracle import Case, block, calling, compare, having

ARCHITECTURES = ["stems", "joins", "stairs"]


def made(eddy: Run) -> Mapping[str, tuple[int, int]]:
    return {m.name: (m.tuples_in, m.tuples_out) for m in eddy.figures().modules if m.action == "transfer"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_filter_travels_along_the_joins(architecture: str) -> None:
    """What is stored is what joins with all relations read before; no tuple is made that dies later."""
    numbers, n = np.arange(4500), 500
    tables = {
        "region": {"r": [1, 2]},
        "nation": {"n": numbers[:25], "r": numbers[:25] % 10},
        "customer": {"c": numbers[:n], "n": numbers[:n] % 25},
        "orders": {"o": numbers[: 3 * n], "c": numbers[: 3 * n] % n},
        "lines": {"o": numbers % (3 * n)},
    }
    joins = ["region.r = nation.r", "nation.n = customer.n", "customer.c = orders.c", "orders.o = lines.o"]
    case = block({alias: pa.table(own) for alias, own in tables.items()}, joins, count_only=True)
    rows, eddy = run(case, Options(architecture=architecture), chunk=100)
    plain, without = run(case, Options(architecture=architecture, transfer=False), chunk=100)
    assert rows == plain == case.expected() and not made(without)
    held, all_ = (
        [s.tuples for s in e.figures().state if s.name.startswith("SteM(")] for e in (eddy, without)
    )
    few = [2, 6, 120, 360]
    assert held[:4] == few and all_[:4] == [2, 25, 500, 1500]
    assert made(eddy)["Filter(customer on orders)"] == (1500, 360)
    # Of SteMs each line makes three tuples, of joins the build sides do.
    figures = eddy.figures()
    made_of_stems = 3 * figures.output_tuples
    assert figures.intermediate_tuples == (made_of_stems if architecture == "stems" else sum(few[1:]))


def test_a_filter_that_drops_little_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried on some tuples, and on as many again after a rest."""
    monkeypatch.setattr(ingest, "_TRIAL", 100)
    monkeypatch.setattr(ingest, "_REST", 3)
    keys = {"a": [k for k in range(1000) if k % 50], "b": range(1000), "c": [*range(1000), 0]}
    tables = {alias: pa.table({"k": own}) for alias, own in keys.items()}
    case = block(tables, ["a.k = b.k", "b.k = c.k"], count_only=True)
    rows, eddy = run(case, chunk=50)
    assert rows == case.expected()
    # Two batches are a trial; then 300 tuples go by: twice more in a thousand.
    assert made(eddy)["Filter(a on b)"][0] == 300
    monkeypatch.setattr(ingest, "_PASSING", 1.0)
    assert made(run(case, chunk=50)[1])["Filter(a on b)"] == (1000, 980)


def test_what_filters_tell_is_not_tried_again() -> None:
    """A tuple that has passed a filter finds one match where keys are unique: joins are tried where not."""
    keys = {name: [k % 1000 for k in range(4000)] for name in "xyz"}
    for copies, explored in ((1, False), (2, True)):
        case = star({name: [*range(0, 1000, 2)] * copies for name in "xyz"}, keys)
        calls = {}
        for policy in ("greedy", "fixed"):
            rows, eddy = run(case, Options(policy=policy), chunk=4000)
            assert rows == case.expected()
            calls[policy] = sum(m.calls for m in eddy.figures().modules if m.action == "probe")
        assert (calls["greedy"] > calls["fixed"]) == explored


# Semijoins and antijoins: any architecture, policy and schedule gives DuckDB's EXISTS and NOT IN.


def many(rows: int, condition: bool) -> Case:
    """Return ``a`` beside ``e``: every tuple meets all of ``e``, and with a condition only its first."""
    e = pa.table({"k": [1] * rows, "x": range(rows)})
    case = block({"a": pa.table({"x": [0, 1, 1], "k": [1, 1, 2]})}, [])
    same, greater = (compare(op, f"a.{x}", f"e.{x}", pa.int64()) for op, x in (("=", "k"), (">", "x")))
    asked = Exists("e", (same,), greater if condition else None)
    spec = replace(case.spec, residuals=(asked,), beside=(RelationSpec("e", e.schema),))
    return Case(spec, {**case.tables, "e": e})


@pytest.mark.parametrize("condition", [False, True])
def test_a_tuple_with_many_matches_comes_once(condition: bool) -> None:
    """Chains longer than what is looked at in one go, to their ends where nothing on them matches."""
    case = many(50_000, condition)
    rows, made = run(case, chunk=10_000)
    assert rows == ({(1, 1): 1} if condition else {(0, 1): 1, (1, 1): 1})
    (held,) = [each for each in made.figures().state if each.name == "Semi(e)"]
    assert held.tuples == held.inserted == 50_000


def test_specs_are_checked() -> None:
    """What nobody asks for, a column that is not there, and a memory budget are refused with a reason."""
    case = many(3, condition=True)
    for wrong, named in (
        ({"residuals": ()}, "stand beside the join"),
        ({"residuals": (Not(case.spec.residuals[0]),)}, "not below NOT"),
        ({"beside": (RelationSpec("e", pa.schema([("k", pa.int64())])),)}, "no column 'x'"),
    ):
        with pytest.raises(InputError, match=named):
            replace(case.spec, **wrong)
    first = case.spec.residuals[0]
    random = replace(calling("third", "row", "", deterministic=False), arguments=(first.keys[0].left,))
    behind = having(case, random, first).spec
    for spec, named in (
        (behind, "behind one that is not deterministic"),
        (stream(0).spec, "with sliding windows"),
    ):
        with pytest.raises(InputError, match=f"memory_budget is set for a [\\s\\S]*{named}"):
            spilling_run_of(spec, dict.fromkeys("ae", ()), Options(memory_budget=1 << 20))


# How a SteM searches by inequalities: in order.


def between(n: int) -> Case:
    """Return ``a.x >= b.low AND a.x < b.high`` over n tuples each, with one match for each."""
    tables = {"a": pa.table({"x": range(n)}), "b": pa.table({"low": range(n), "high": range(1, n + 1)})}
    bounds = (compare(">=", "a.x", "b.low", pa.int64()), compare("<", "a.x", "b.high", pa.int64()))
    return having(block(tables, [], count_only=True), *bounds)


@pytest.mark.parametrize("stream", ["a", "b"])
def test_a_range_is_searched_and_not_filtered(stream: str) -> None:
    """Both bounds narrow the search if they are of one column; else one does, and a selection the other."""
    n = 300
    rows, eddy = run(between(n), Options(batch_size=50), stream=stream, chunk=100)
    assert rows == {(n,): 1}
    made = {m.action: m.tuples_out for m in eddy.figures().modules if m.action in ("probe", "select")}
    if stream == "b":
        assert made == {"probe": n}
    else:
        assert made["select"] == n and made["probe"] < n * n
