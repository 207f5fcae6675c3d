"""Any legal routing, any batch size and any interleaving of sources gives DuckDB's multiset."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.runs.eddy_run import EddyRun
from millrace.options import POLICY_NAMES, Options
from tests.engine.eddy.oracle import Case, cases, multiset


@st.composite
def schedules(draw: st.DrawFn, case: Case) -> Schedule:
    """Draw which relation stays unbuilt, whether sources are interleaved, and their order."""
    numbers = range(len(case.spec.relations))
    order = tuple(draw(st.permutations(list(numbers))))
    interleaved = draw(st.booleans())
    if draw(st.booleans()):
        return Schedule(order[-1], interleaved, order)
    return Schedule(None, True, order)


def answer(case: Case, options: Options, schedule: Schedule | None, chunk: int) -> pa.Table:
    sources = {
        alias: table.combine_chunks().to_batches(max_chunksize=chunk) for alias, table in case.tables.items()
    }
    eddy = EddyRun(case.spec, sources, options, schedule=schedule)
    return pa.Table.from_batches(list(eddy.run()), case.spec.output_schema)


@settings(max_examples=90, deadline=None, derandomize=True)
@given(st.data())
def test_every_routing_gives_the_oracles_rows(data: st.DataObject) -> None:
    """Random graphs (cyclic ones too), keys of every type, nulls and duplicates; any policy."""
    case = data.draw(cases())
    options = Options(
        architecture="stems",
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=data.draw(st.sampled_from([1, 2, 3, 7, 100, 10_000])),
        reoptimize_every=data.draw(st.sampled_from([1, 3, 1000])),
        seed=data.draw(st.integers(0, 3)),
    )
    schedule = data.draw(schedules(case))
    rows = answer(case, options, schedule, data.draw(st.sampled_from([1, 2, 5, 1000])))
    got = multiset(rows)
    assert got == case.expected(), case.sql()
