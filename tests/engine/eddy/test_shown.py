"""Rows that are shown before they are complete: DuckDB's rows of the other relations, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, strategies as st

from lab.access import Index
from millrace.engine.access.schedule import Schedule
from millrace.engine.eddy.partial import PartialDataflow, find_missing
from millrace.engine.eddy.preference import PreferringDataflow
from millrace.engine.eddy.run import Run
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.oracle import Case, block, cases, multiset
from tests.engine.eddy.test_partial import connected, prefix
from tests.engine.laws import examples


def make(case: Case, missing: list[str], sources: Any, batch_size: int, **given: Any) -> tuple[Run, Any]:
    """Return a run, and what it will have shown."""
    shown = list[pa.RecordBatch]()
    made = Run(
        case.spec,
        sources,
        Options(architecture="stems", policy="random", seed=given.pop("seed", 0), batch_size=batch_size),
        schedule=Schedule(None, True, tuple(map(case.spec.aliases.index, sources))),
        eddy=partial(PartialDataflow, latest=lambda: None, missing=missing, show=shown.append),
        **given,
    )
    return made, shown


def right(case: Case, missing: list[str], chunk: int, seed: int, stall: int | None = None) -> bool:
    """Missing relations stall for so many rounds, None until all others have ended."""
    pieces = case.batches(chunk)
    rounds = sum(map(len, pieces.values())) + 2 if stall is None else stall
    sources = {alias: [*([None] * rounds if alias in missing else []), *own] for alias, own in pieces.items()}
    made, shown = make(case, missing, sources, chunk, seed=seed, clock=VirtualClock())
    found = (pa.Table.from_batches(each, case.spec.output_schema) for each in (made.run(), shown))
    rows, early = map(multiset, found)
    others = prefix(case, missing, {alias: table.num_rows for alias, table in case.tables.items()})
    return rows == case.expected() and (early == others if stall is None else early <= others)


@examples(40)
@given(st.data())
def test_what_stalls_is_left_out_and_supersedes(data: st.DataObject) -> None:
    """Rows of the other relations are shown, each once at most, all if need be; the result is as without."""
    case = data.draw(cases(5))
    assume(not case.spec.count_only and not any(r.distinct for r in case.spec.relations))
    missing = data.draw(st.lists(st.sampled_from(case.spec.aliases), unique=True, min_size=1, max_size=2))
    assume(connected(case.spec, {*case.spec.aliases} - {*missing}))
    missing = [*find_missing(case.spec, [alias.upper() for alias in missing])]
    chunk, seed = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.integers(0, 9))
    assert right(case, missing, chunk, seed, data.draw(st.none() | st.integers(0, 12)))


KEYS = pa.table({"k": [1, 2, 2, 3], "v": [1, 2, 3, 4]})
STAR = block(dict.fromkeys("rst", KEYS), ["r.k = s.k", "r.k = t.k"])


def all_right() -> bool:
    """Relations stall, or an index has answered 1 and 2 when each of its four bindings comes once more."""
    pair, clock = block({"r": pa.table({"k": [1, 2, 3, 4]}), "t": KEYS}, ["r.k = t.k"]), VirtualClock()

    def twice() -> Iterator[pa.RecordBatch | None]:
        yield from pair.batches(4)["r"]
        while clock.now() < 2:
            yield None
        yield None  # while what has been answered is noted
        yield from pair.batches(4)["r"]

    index = Index("t", ["k"], KEYS, clock, delay=1, in_flight=1)
    made, shown = make(pair, ["t"], {"r": twice()}, 4, clock=clock, access={"t": [index]})
    found = sum(batch.num_rows for batch in made.run())
    keys = [k for batch in shown for k in batch["r_k"].to_pylist()]
    stalls = all(right(STAR, ["t"], 2, seed) for seed in range(5))
    return stalls and (found, keys) == (2 * KEYS.num_rows, [1, 2, 3, 4, 3, 4])


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    ("name", "careless"),
    [
        ("_make_table", PreferringDataflow._make_table),
        ("_lacks", lambda *_: False),
        ("_find_lacking", lambda _, batch: np.arange(batch.size)),
    ],
    ids=["any_order", "show_nothing", "show_all"],
)
def test_a_careless_eddy_is_noticed(monkeypatch, name: str, careless: Callable[..., Any]) -> None:
    """Tuples lack missing relations alone, and only where a match may be missing."""
    assert all_right()
    monkeypatch.setattr(PartialDataflow, name, careless)
    assert not all_right()


def test_complete_rows_wait_for_no_full_batch() -> None:
    """Who wants rows before they are complete wants complete ones, too."""
    clock = VirtualClock()

    def read_slowly() -> Iterator[pa.RecordBatch]:
        for batch in STAR.batches(1)["r"]:
            clock.advance(1)
            yield batch

    made, _ = make(STAR, ["t"], {**STAR.batches(9), "r": read_slowly()}, 100, clock=clock)
    next(made.run())
    assert clock.now() < KEYS.num_rows


@pytest.mark.parametrize(
    ("names", "says"), [(["u"], "there is 'r'"), (["R"], "hold the"), (["s", "r", "t"], "hold")]
)
def test_what_cannot_be_left_out(names: list[str], says: str) -> None:
    """A relation that is not there, one between the others, all of them, and one that others are asked by."""
    chain = block(dict.fromkeys("rst", KEYS), ["s.k = r.k", "r.v = t.v"])
    with pytest.raises(InputError, match=says):
        find_missing(chain.spec, names)
    assert find_missing(chain.spec, ["T"]) == ("t",)
    ring = block(dict.fromkeys("rst", KEYS), ["s.k = r.k", "r.v = t.v", "s.v = t.k"]).spec
    assert find_missing(ring, ["t"], {"s": [("k", "v"), ("k",)]}) == ("t",)
    with pytest.raises(InputError, match="looked up"):
        find_missing(ring, ["t"], {"s": [("k", "v")]})
