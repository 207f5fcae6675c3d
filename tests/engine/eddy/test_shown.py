"""Rows that are shown before they are complete: DuckDB's rows of the other relations, each once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, strategies as st

from millrace.engine.access.schedule import Schedule
from millrace.engine.eddy.partial import PartialDataflow, find_missing
from millrace.engine.eddy.preference import PreferringDataflow
from millrace.engine.eddy.run import Run
from millrace.errors import InputError
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.oracle import Case, Rows, block, cases, multiset
from tests.engine.eddy.test_partial import connected, prefix
from tests.engine.laws import examples


def run(case: Case, missing: list[str], chunk: int, seed: int) -> tuple[Rows, Rows]:
    """Return what is shown while missing relations stall until all others have ended, and the result."""
    shown = list[pa.RecordBatch]()
    pieces = case.batches(chunk)
    calm = sum(map(len, pieces.values())) + 2
    sources = {alias: [*([None] * calm if alias in missing else []), *own] for alias, own in pieces.items()}
    made = Run(
        case.spec,
        sources,
        Options(architecture="stems", policy="random", seed=seed, batch_size=chunk),
        schedule=Schedule(None, True, tuple(range(len(pieces)))),
        clock=VirtualClock(),
        eddy=partial(PartialDataflow, latest=lambda: None, missing=missing, show=shown.append),
    )
    found = (pa.Table.from_batches(each, case.spec.output_schema) for each in (made.run(), shown))
    rows, early = map(multiset, found)
    return early, rows


def right(case: Case, missing: list[str], chunk: int, seed: int) -> bool:
    early, rows = run(case, missing, chunk, seed)
    whole = {alias: table.num_rows for alias, table in case.tables.items()}
    return (early, rows) == (prefix(case, missing, whole), case.expected())


@examples(40)
@given(st.data())
def test_what_stalls_is_left_out_and_supersedes(data: st.DataObject) -> None:
    """All rows of the other relations are shown, each once; the result is as without."""
    case = data.draw(cases(5))
    assume(not case.spec.count_only and not any(r.distinct for r in case.spec.relations))
    missing = data.draw(st.lists(st.sampled_from(case.spec.aliases), unique=True, min_size=1, max_size=2))
    assume(connected(case.spec, {*case.spec.aliases} - {*missing}))
    missing = [*find_missing(case.spec, [alias.upper() for alias in missing])]
    assert right(case, missing, data.draw(st.sampled_from([1, 2, 5])), data.draw(st.integers(0, 9)))


KEYS = pa.table({"k": [1, 2, 2, 3], "v": [1, 2, 3, 4]})
STAR = block(dict.fromkeys("rst", KEYS), ["r.k = s.k", "r.k = t.k"])


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    ("name", "careless"),
    [("_make_table", PreferringDataflow._make_table), ("_lacks", lambda *_: False)],
    ids=["any_order", "show_nothing"],
)
def test_a_careless_eddy_is_noticed(monkeypatch, name: str, careless: Callable[..., Any]) -> None:
    """Where missing relations are met in any order, tuples lack them never, or lack others too."""
    assert all(right(STAR, ["t"], 2, seed) for seed in range(5))
    monkeypatch.setattr(PartialDataflow, name, careless)
    assert not all(right(STAR, ["t"], 2, seed) for seed in range(5))


@pytest.mark.parametrize(
    ("names", "says"), [(["u"], "there is 'r'"), (["R"], "hold the"), (["s", "r", "t"], "hold")]
)
def test_what_cannot_be_left_out(names: list[str], says: str) -> None:
    """A relation that is not there, one between the others, and all of them."""
    chain = block(dict.fromkeys("rst", KEYS), ["s.k = r.k", "r.v = t.v"])
    with pytest.raises(InputError, match=says):
        find_missing(chain.spec, names)
    assert find_missing(chain.spec, ["T"]) == ("t",)
