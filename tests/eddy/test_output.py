"""Results: one gather a relation and batch, and masks that stay with their batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

import tests.eddy.test_predicates as predicate_cases
from millrace.clock import VirtualClock
from millrace.relations import RelationStore
from millrace.router.back_pressure import Backpressure
from millrace.runs.eddy_run import EddyRun
from millrace.runs.output import Output
from tests.eddy.blocks import batches, chain
from tests.eddy.oracle import multiset


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


@settings(max_examples=60, deadline=None, derandomize=True)
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
