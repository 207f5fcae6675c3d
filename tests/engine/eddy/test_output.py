"""Results: one gather a relation and batch, and masks that stay with their batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

import tests.engine.eddy.test_predicates as predicate_cases
from millrace.engine.expressions import Call, Column, ColumnRef, Compare, Predicate
from millrace.engine.relations import RelationStore
from millrace.engine.router.back_pressure import Backpressure
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.output import Output
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import batches, block, chain
from tests.engine.eddy.oracle import multiset
from tests.engine.laws import examples


def test_a_relation_is_gathered_once_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all of its output columns together, wherever they stand among the others."""
    taken: list[int] = []
    added: list[int] = []
    take, add = RelationStore.take, Output.add

    def noted(self: RelationStore, columns: list[str], rows: object) -> list[pa.Array]:
        taken.append(len(columns))
        return take(self, columns, rows)

    case = chain(3, rows=40)
    mixed = sorted(case.spec.output, key=lambda column: column.source.column)
    case = replace(case, spec=replace(case.spec, output=tuple(mixed)))
    assert [column.source.relation for column in mixed[:3]] == ["a", "b", "c"]
    monkeypatch.setattr(RelationStore, "take", noted)
    monkeypatch.setattr(Output, "add", lambda self, batch: (added.append(batch.size), add(self, batch))[1])
    found = list(EddyRun(case.spec, batches(case, 10), clock=VirtualClock()).run())
    assert multiset(pa.Table.from_batches(found, case.spec.output_schema)) == case.expected()
    assert sorted(taken) == sorted([2, 3, 2] * sum(size > 0 for size in added))


@examples(60)
@given(
    predicate_cases.filters(), st.integers(1, 7), st.sampled_from([None, 1, 3]), st.sampled_from([1, 5, 40])
)
def test_masks_stay_with_their_batches_under_back_pressure(
    filters: tuple[list[predicate_cases.Table], int], arrival: int, queue: int | None, buffer: int
) -> None:
    """Tuples of several batches are on their way at once, and each is marked in the mask of its own."""
    tables, rows = filters
    expected = predicate_cases.expected(tables, rows)
    if expected is None:
        return
    queued = partial(EddyRun, backpressure=Backpressure(queue, buffer))
    with mock.patch.object(predicate_cases, "EddyRun", queued):
        for batch_size in (1, 3, 100):
            found = predicate_cases.run(tables, rows, arrival, policy="naive", batch_size=batch_size)
            assert found == expected


@pytest.mark.parametrize("filtered", [None, "compiled", "called"])
def test_wide_rows_come_in_small_batches(filtered: str | None) -> None:
    """Results of 2.4 GB, more than Arrow's texts can have in one array, are gathered in pieces."""
    texts = pa.table({"k": range(60), "text": [f"{n:040000d}" for n in range(60)]})
    fans = pa.table({"k": pa.array([n % 60 for n in range(60_000)])})
    case = block({"texts": texts, "fans": fans}, ["texts.k = fans.k"])
    column = Column(ColumnRef("texts", "text"))
    residual: dict[str | None, tuple[Predicate, ...]] = {
        None: (),
        "compiled": (Compare(">", column, Column(ColumnRef("fans", "name")), pa.string()),),
        "called": (
            Call(
                PredicateSpec("p", lambda text, k: pc.greater(k, -1), "arrow"),
                (column, Column(ColumnRef("fans", "k"))),
            ),
        ),
    }
    if filtered == "compiled":
        fans = fans.append_column("name", pa.array([""] * 60_000))
    relations = tuple(replace(r, schema=fans.schema) if r.alias == "fans" else r for r in case.spec.relations)
    spec = replace(case.spec, relations=relations, residuals=residual[filtered])
    sources = {"texts": texts.to_batches(), "fans": fans.to_batches()}
    rows = 0
    eddy = EddyRun(
        spec, sources, Options(policy="fixed", order=("fans", "texts")), stream="fans", clock=VirtualClock()
    )
    for batch in eddy.run():
        rows += batch.num_rows
        assert batch.nbytes < 200_000_000
    assert rows == 60_000
