"""Partial results: DuckDB's rows over what has arrived, with nulls where relations are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, event, given, strategies as st

from lab.partial import partial
from millrace.engine.access.schedule import Schedule
from millrace.engine.eddy.run import Run
from millrace.engine.plan.expressions import ColumnRef, relations_of
from millrace.engine.plan.spec import JoinSpec
from millrace.errors import InputError, StateError
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, Options
from tests.engine.eddy.access_cases import any_options
from tests.engine.eddy.invariants import attribute_classes
from tests.engine.eddy.oracle import Case, Rows, answer_of, cases, multiset
from tests.engine.eddy.test_arrivals import CHAIN
from tests.engine.laws import examples
from tests.engine.test_trees import components


def prefix(case: Case, missing: list[str], arrived: dict[str, int]) -> Rows:
    """Return DuckDB's rows over the first rows of the other relations, with nulls for the missing ones."""
    spec = case.spec
    kept = {*spec.aliases} - {*missing}
    remaining = replace(
        spec,
        relations=tuple(r for r in spec.relations if r.alias in kept),
        equalities=implied(spec, kept),
        residuals=tuple(p for p in spec.residuals if {*relations_of(p)} <= kept),
        output=(),
    )
    tables = {alias: case.tables[alias].slice(0, arrived[alias]) for alias in kept}
    sql = Case(remaining, tables).sql()
    if not spec.count_only:
        shown = [f'{o.source if o.source.relation in kept else "NULL"} AS "{o.name}"' for o in spec.output]
        sql = sql.replace("SELECT 1", f"SELECT {', '.join(shown)}", 1)
    return answer_of(sql, tables)


def connected(spec: JoinSpec, kept: set[str]) -> bool:
    """Return whether equalities, implied ones too, hold relations together."""
    number = spec.aliases.index
    pairs = [(number(e.left.relation), number(e.right.relation)) for e in implied(spec, kept)]
    groups = components(len(spec.aliases), pairs)
    return bool(kept) and any({*map(number, kept)} <= {*group} for group in groups)


def implied(spec: JoinSpec, kept: set[str]) -> tuple[Any, ...]:
    """Return the equalities between remaining relations, those that only others implied among them."""
    classes = [[ColumnRef(spec.aliases[r], name) for r, name in each] for each in attribute_classes(spec)]
    found = [[ref for ref in refs if ref.relation in kept] for refs in classes]
    # What cannot meet a missing relation, for its key is null, is no part of any result.
    return tuple(replace(spec.equalities[0], left=refs[0], right=each) for refs in found for each in refs)


def paused(case: Case, options: Options, chunk: int, seen: dict[str, int], missing: list[str]):
    """Return partial results while all sources have stalled after so many batches, and DuckDB's.

    The caller gets control at the batch that ``run()`` yields then; None where the sources end before.
    """
    pieces = case.batches(chunk)
    sources = {a: [*own[: seen[a]], *([None] * 20), *own[seen[a] :]] for a, own in pieces.items()}
    schedule = Schedule(None, True, tuple(range(len(pieces))))
    eddy = Run(case.spec, sources, options, schedule=schedule, clock=VirtualClock())
    found, rows = None, []
    for batch in eddy.run():
        rows.append(batch)
        if found is None and eddy.dataflow._known_stalled:
            indexed = [stem.nbytes - stem.store.nbytes for stem in eddy.context.stems]
            found = pa.Table.from_batches(list(partial(eddy, missing)), case.spec.output_schema)
            assert [stem.nbytes - stem.store.nbytes for stem in eddy.context.stems] == indexed
    assert multiset(pa.Table.from_batches(rows, case.spec.output_schema)) == case.expected()
    arrived = {a: sum(piece.num_rows for piece in own[: seen[a]]) for a, own in pieces.items()}
    return None if found is None else (multiset(found), prefix(case, missing, arrived))


@examples(40)
@given(st.data())
def test_partial_results_are_duckdbs_over_what_has_arrived(data: st.DataObject) -> None:
    """Of random relations, after any of their batches; and the run goes on unharmed."""
    case = data.draw(cases(5))
    assume(len(case.spec.relations) > 1)
    own = {"architecture": ("stems", "joins", "stairs"), "intermediate": [False, True], "online": [True]}
    options = data.draw(any_options(**own, migration=MIGRATIONS))
    chunk = data.draw(st.sampled_from([1, 2, 5]))
    pieces = case.batches(chunk)
    seen = {alias: data.draw(st.integers(0, len(own))) for alias, own in pieces.items()}
    missing = data.draw(st.lists(st.sampled_from(sorted(pieces)), unique=True, max_size=3))
    if not connected(case.spec, set(pieces) - set(missing)):
        with pytest.raises(InputError, match=r"no join predicate connects|without every relation"):
            partial(Run(case.spec, pieces, options), missing)
        return
    got = paused(case, options, chunk, seen, missing)
    event(f"{options.architecture}: {got is not None}")
    assert got is None or got[0] == got[1]


# When they cannot be had


@pytest.mark.parametrize(
    ("missing", "how", "named"),
    [
        (["s"], {}, r"\['r'\] and \['t'\]"),
        (["r", "s", "t"], {}, "at least one"),
        (["u"], {}, "'u'"),
        (["t"], {"options": Options(architecture="static")}, "'stems'"),
        # What is not built cannot be joined again.
        (["r"], {"stream": "t", "options": Options()}, "'t' is streamed"),
    ],
)
def test_what_cannot_be_asked_for(missing: list[str], how: dict[str, Any], named: str) -> None:
    """Other relations must be connected and kept; the error names the parts."""
    how = {"options": Options(online=True), **how}
    made = Run(CHAIN.spec, CHAIN.batches(8), **how)
    with pytest.raises(InputError, match=named):
        partial(made, missing)


def test_not_while_tuples_are_in_flight() -> None:
    """With small batches run() yields in the middle of its work."""
    options = Options(online=True, batch_size=2)
    eddy = Run(CHAIN.spec, CHAIN.batches(40), options, clock=VirtualClock())
    with pytest.raises(StateError, match="in flight"):
        [partial(eddy, ["t"]) for _ in eddy.run()]
