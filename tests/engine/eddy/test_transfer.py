"""Transfer of filters: what has no match in a relation that was read before is not stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.operators import transfer
from millrace.engine.runs.eddy_run import EddyRun
from millrace.errors import InputError
from millrace.options import Options
from tests.engine.eddy.blocks import batches, block, run
from tests.engine.eddy.oracle import Case, multiset

ARCHITECTURES = ["stems", "joins", "stairs"]


def held(eddy: EddyRun) -> list[int]:
    return [stem.store.held for stem in eddy._state.stems]


def made(eddy: EddyRun) -> Mapping[str, tuple[int, int]]:
    return {m.name: (m.tuples_in, m.tuples_out) for m in eddy.figures().modules if m.action == "transfer"}


def taken(eddy: EddyRun) -> int:
    return sum(m.tuples_in for m in eddy.figures().modules if m.action in ("probe", "join"))


def snowflake(rows: int = 500) -> Case:
    """Return a block in which a filter on the smallest relation has a long way to the largest."""
    numbers = np.arange(rows)
    return block(
        {
            "region": pa.table({"r": [1, 2]}),
            "nation": pa.table({"n": range(25), "r": [i % 10 for i in range(25)]}),
            "customer": pa.table({"c": numbers, "n": numbers % 25}),
            "orders": pa.table({"o": np.arange(3 * rows), "c": np.arange(3 * rows) % rows}),
            "lines": pa.table({"o": np.arange(9 * rows) % (3 * rows)}),
        },
        ["region.r = nation.r", "nation.n = customer.n", "customer.c = orders.c", "orders.o = lines.o"],
        count_only=True,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_filter_travels_along_the_joins(architecture: str) -> None:
    """What is stored is what joins with all relations read before, so joins and probes take in less."""
    case = snowflake()
    rows, eddy = run(case, Options(architecture=architecture), chunk=100)
    assert rows == case.expected()
    few = [2, 6, 120, 360]
    assert held(eddy)[:4] == few
    plain, without = run(case, Options(architecture=architecture, transfer=False), chunk=100)
    assert plain == rows and held(without)[:4] == [2, 25, 500, 1500] and not made(without)
    assert made(eddy)["Filter(customer on orders)"] == (1500, 360)
    assert taken(eddy) < 0.8 * taken(without)
    # No tuple is made that dies later: of SteMs each line makes three, of joins the build sides do.
    figures = eddy.figures()
    made_of_stems = 3 * figures.output_tuples
    assert figures.intermediate_tuples == (made_of_stems if architecture == "stems" else sum(few[1:]))


def two(rows: int, matching: Sequence[int]) -> Case:
    """Return a block of a small relation, one that it filters, and one that is streamed."""
    keys = np.arange(rows)
    return block(
        {
            "a": pa.table({"k": matching}),
            "b": pa.table({"k": keys}),
            "c": pa.table({"k": np.append(keys, 0)}),
        },
        ["a.k = b.k", "b.k = c.k"],
        count_only=True,
    )


def test_a_filter_that_drops_little_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried on some tuples, and on as many again after a rest."""
    monkeypatch.setattr(transfer, "_TRIAL", 100)
    monkeypatch.setattr(transfer, "_REST", 3)
    case = two(1000, [k for k in range(1000) if k % 50])
    rows, eddy = run(case, Options(), chunk=50)
    assert rows == case.expected()
    # Two batches are a trial; then 300 tuples go by: twice more in a thousand.
    assert made(eddy)["Filter(a on b)"][0] == 300
    monkeypatch.setattr(transfer, "_PASSING", 1.0)
    assert made(run(case, Options(), chunk=50)[1])["Filter(a on b)"] == (1000, 980)


def test_tuples_that_roles_share_are_not_filtered() -> None:
    """In another role a tuple may have a match."""
    people = pa.table({"id": range(300), "boss": [i // 10 for i in range(300)]})
    case = block(
        {"vip": pa.table({"id": [7]}), "p": people, "b": people, "x": pa.table({"id": range(301)})},
        ["vip.id = p.id", "p.boss = b.id", "b.id = x.id"],
        count_only=True,
    )
    vip, person, boss, last = case.spec.relations
    spec = replace(case.spec, relations=(vip, person, replace(boss, same_as="p"), last))
    sources = {a: b for a, b in batches(case, 50).items() if a != "b"}
    eddy = EddyRun(spec, sources, Options())
    assert multiset(pa.Table.from_batches(list(eddy.run()), spec.output_schema)) == case.expected()
    assert not any(name.endswith("on p)") for name in made(eddy))


def test_partial_results_are_refused_when_tuples_are_missing() -> None:
    """They would be parts of them; nothing is dropped where sources are read side by side."""
    case = snowflake(50)
    _, eddy = run(case, Options(), chunk=100)
    with pytest.raises(InputError, match="set option online"):
        list(eddy.partial(["lines"]))
    _, online = run(case, Options(online=True), chunk=100)
    assert not made(online) and list(online.partial(["lines"]))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_filters_leave_is_joined_together(architecture: str) -> None:
    """A few tuples of each of many batches make one batch: probes are made for them all at once."""
    case = snowflake()
    rows, eddy = run(case, Options(architecture=architecture, batch_size=8000), chunk=50)
    assert rows == case.expected()
    calls = [m.calls for m in eddy.figures().modules if m.action in ("probe", "join") and m.tuples_in > 500]
    assert calls and sum(calls) < 9 * 500 / 50
