"""A memory budget holds whatever the join does under it: skew, every architecture, a stop at any moment."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.runs.run_of import run_of
from millrace.engine.spill import spilling
from millrace.engine.spill.guard import Guard
from millrace.limits.clock import VirtualClock
from millrace.options import ALGORITHMS, ARCHITECTURES, Options
from tests.engine.eddy.blocks import batches, block
from tests.engine.eddy.holding import Holding
from tests.engine.eddy.oracle import Case, multiset, third
from tests.engine.spill.runs import spilled
from tests.engine.spill.test_cases import large

BUDGET = 1_500_000
RATIO = 1.1
"""Most bytes held over the budget."""


def hot(rows: int, share: float) -> Case:
    """Return a chain, counted, whose first join has a key with a share of the rows on both sides."""
    draw = np.random.default_rng(7)

    def keys(share: float) -> pa.Array:
        values = draw.integers(2, rows, rows)
        values[draw.permutation(rows)[: int(share * rows)]] = 1
        return pa.array(values)

    tables = {
        "a": pa.table({"k": keys(share)}),
        "b": pa.table({"k": keys(share), "j": keys(share)}),
        "c": pa.table({"j": pa.array(draw.integers(1, rows, rows))}),
    }
    return block(tables, ["a.k = b.k", "b.j = c.j"], count_only=True)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "stems"])
def test_intermediate_tuples_stay_within_the_budget(architecture, online, tmp_path):
    """A million of them would take many times the budget; base tuples and indexes a fraction of it."""
    case = hot(4000, 0.25)
    options = Options(
        architecture=architecture, policy="fixed", order=("a", "b", "c"), batch_size=1024, online=online
    )
    run = run_of(case.spec, batches(case, 1000), options, clock=VirtualClock())
    holding = Holding(run)
    expected = pa.Table.from_batches(list(run.run()), case.spec.output_schema)
    assert multiset(expected) == case.expected()
    assert holding.state > 5 * BUDGET
    assert run.figures().budget_peak_ratio == 0

    options = replace(options, memory_budget=BUDGET, spill_folder=str(tmp_path), algorithm="shj")
    rows, eddy = spilled(case, options, chunk=1000)
    assert rows == case.expected()
    assert 0.2 < eddy.figures().budget_peak_ratio <= RATIO


PAIRS = [
    (architecture, ALGORITHMS[(place + step) % len(ALGORITHMS)])
    for place, architecture in enumerate(ARCHITECTURES)
    for step in (0, 1)
]
"""Each architecture with two algorithms, and each algorithm with two architectures."""


@pytest.mark.parametrize(("architecture", "algorithm"), PAIRS)
def test_base_tuples_stay_within_the_budget(architecture, algorithm, tmp_path):
    """Those of all relations would take several times as much; in every architecture, by every algorithm."""
    case = hot(30_000, 0.002)
    options = Options(
        architecture=architecture,
        memory_budget=BUDGET,
        spill_folder=str(tmp_path),
        algorithm=algorithm,
        batch_size=8192,
    )
    rows, eddy = spilled(case, options, chunk=4096)
    assert rows == case.expected()
    assert eddy.tally.bytes_written > 0
    assert 0.2 < eddy.figures().budget_peak_ratio <= RATIO


def test_what_makes_tuples_again_is_not_divided(tmp_path):
    """Eddies do without intermediate tuples; a static plan cannot, so its base tuples go to files."""
    case = hot(4000, 0.25)
    written = {}
    for architecture in ("joins", "stairs", "static"):
        options = Options(
            architecture=architecture,
            policy="fixed",
            order=("a", "b", "c"),
            batch_size=1024,
            memory_budget=BUDGET,
            spill_folder=str(tmp_path),
        )
        rows, eddy = spilled(case, options, chunk=1000)
        assert rows == case.expected()
        written[architecture] = eddy.tally.bytes_written
    assert written["joins"] == written["stairs"] == 0 < written["static"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whoever_wants_base_tuples_only_gets_them_in_every_piece(algorithm, tmp_path):
    """``intermediate=False`` holds for what is read back from files too."""
    case = large(40, rows=200)
    options = Options(
        architecture="joins",
        policy="fixed",
        order=("a", "b", "c"),
        intermediate=False,
        memory_budget=10_000,
        spill_folder=str(tmp_path),
        algorithm=algorithm,
        batch_size=16,
    )
    asked = []
    make = spilling.run_of

    def noting(*args, **kwargs):
        asked.append(args[2].intermediate)
        return make(*args, **kwargs)

    with mock.patch.object(spilling, "run_of", noting):
        rows, eddy = spilled(case, options)
    assert rows == case.expected()
    assert eddy.tally.from_disk.count > 0
    assert len(asked) > 2 and not any(asked)


def stopped(case: Case, options: Options, looks: range) -> list[bool]:
    """Return for each look whether the answer is right if the state is too large at that look alone."""
    right, stops = [], 0
    expected = case.expected()
    for stop in looks:
        seen = iter(range(stop + 1))
        too_much = mock.patch.object(Guard, "_is_too_much", lambda *_, i=seen, n=stop: next(i, None) == n)
        with too_much:
            rows, eddy = spilled(case, options, chunk=16)
        right.append(rows == expected)
        stops += eddy.tally.in_memory.count + eddy.tally.from_disk.count > 1
    assert stops, "one join had room in every case"
    return right


def symmetric(architecture, folder, *, online):
    return Options(
        architecture=architecture,
        memory_budget=1_000_000,
        spill_folder=str(folder),
        algorithm="shj",
        batch_size=16,
        online=online,
    )


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_predicates_before_building(architecture, online, tmp_path):
    """Tuples that have met a predicate and are not built yet are not lost, whenever the join stops."""
    case = large(3, rows=40, count_only=True)
    calls = tuple(Call(third("row"), (Column(ColumnRef(alias, "k")),)) for alias in "ab")
    case = replace(case, spec=replace(case.spec, residuals=calls))
    options = symmetric(architecture, tmp_path, online=online)
    assert all(stopped(case, options, range(24)))
