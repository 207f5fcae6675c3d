"""Any algorithm, any budget and any interleaving gives DuckDB's multiset, and leaves no file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st

from millrace.engine.spill import memory
from millrace.options import ALGORITHMS, ARCHITECTURES, POLICY_NAMES, Options
from tests.engine.eddy.oracle import cases
from tests.engine.spill.runs import left, spilled

ROW = 330
"""Bytes that two copies of the widest tuple of a case, with its codes, may take."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_budget_gives_the_oracles_rows(algorithm: str, data: st.DataObject) -> None:
    """Random graphs, keys of every type, nulls, duplicates, predicates of users; nothing to all spilled."""
    case = data.draw(cases(max_relations=4, max_rows=20))
    batch = data.draw(st.sampled_from([1, 1, 2, 3, 7]))
    if data.draw(st.booleans()):  # nothing is known of the sizes beforehand
        relations = tuple(replace(r, rows=None) for r in case.spec.relations)
        case = replace(case, spec=replace(case.spec, relations=relations))
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            memory_budget=batch * data.draw(st.sampled_from([ROW, 2 * ROW, 4 * ROW, 1_000_000])),
            algorithm=algorithm,
            spill_folder=folder,
            online=data.draw(st.booleans()),
            architecture=data.draw(st.sampled_from(["stems", "stems", *ARCHITECTURES])),
            policy=data.draw(st.sampled_from(POLICY_NAMES)),
            batch_size=batch,
            seed=data.draw(st.integers(0, 3)),
        )
        # Less for state than its usual share lets a few tuples be too many, though a batch still fits.
        share = data.draw(st.sampled_from([0.05, 0.2, 0.7]))
        with mock.patch.object(memory, "_STATE_SHARE", share):
            rows, _ = spilled(case, options, chunk=data.draw(st.sampled_from([1, 2, 5, 1000])))
        assert rows == case.expected(), case.sql()
        assert left(Path(folder)) == []
