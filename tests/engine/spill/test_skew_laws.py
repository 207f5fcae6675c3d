"""A memory budget holds whatever the join does under it: skew, every architecture, a stop at any moment."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings, strategies as st

from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.migration import MIGRATION_POLICIES
from millrace.engine.runs.run_of import run_of
from millrace.engine.spill import spilling
from millrace.engine.spill.guard import Guard
from millrace.engine.spill.spilling import SpillingEddy
from millrace.engine.state.memory import Held
from millrace.limits.clock import VirtualClock
from millrace.options import ALGORITHMS, ARCHITECTURES, POLICY_NAMES, Options
from tests.engine.eddy.blocks import batches, block
from tests.engine.eddy.oracle import Case, cases, multiset, third
from tests.engine.eddy.skew import Holding, skewed
from tests.engine.spill.runs import left, spilled
from tests.engine.spill.test_cases import large

BUDGET = 1_500_000
RATIO = 1.1
"""Most bytes held over the budget."""


@st.composite
def settings_of(draw: st.DrawFn, architecture: str, folder: str, budget: int, batch: int) -> Options:
    """Draw any algorithm, and all that bears on what is stored."""
    return Options(
        memory_budget=budget,
        spill_folder=folder,
        algorithm=draw(st.sampled_from(ALGORITHMS)),
        online=draw(st.booleans()),
        architecture=architecture,
        migration=draw(st.sampled_from(sorted(MIGRATION_POLICIES))) if architecture == "stairs" else None,
        intermediate=draw(st.booleans()),
        policy=draw(st.sampled_from(POLICY_NAMES)),
        batch_size=batch,
        reoptimize_every=draw(st.sampled_from([3, 1000])),
        seed=draw(st.integers(0, 3)),
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_skew_under_any_budget_gives_the_oracles_rows(architecture: str, data: st.DataObject) -> None:
    """One key has half of the rows; budgets from what a few tuples need to what everything needs."""
    case = data.draw(skewed(rows=14))
    with tempfile.TemporaryDirectory() as folder:
        budget = data.draw(st.sampled_from([1_000, 3_000, 10_000]))
        options = data.draw(settings_of(architecture, folder, budget, 4))
        rows, eddy = spilled(case, options, chunk=data.draw(st.sampled_from([1, 4, 1000])))
        assert rows == case.expected(), case.sql()
        assert left(Path(folder)) == []
    event("spilled" if eddy.tally.bytes_written else "in memory")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_stopping_at_any_moment_gives_the_oracles_rows(architecture: str, data: st.DataObject) -> None:
    """Whenever the state is said to be too large, what is left is just what the results out do not have."""
    case = data.draw(cases(max_relations=4, max_rows=16))
    random_ = random.Random(data.draw(st.integers(0, 1 << 30)))
    share, stops = data.draw(st.sampled_from([0.05, 0.2, 1.0])), iter(range(6))

    def too_much(guard: Guard, held: Held) -> bool:
        return random_.random() < share and next(stops, None) is not None

    with tempfile.TemporaryDirectory() as folder:
        batch = data.draw(st.sampled_from([1, 3, 100]))
        options = data.draw(settings_of(architecture, folder, 1_000_000, batch))
        with mock.patch.object(Guard, "_is_too_much", too_much):
            rows, _ = spilled(case, options, chunk=data.draw(st.sampled_from([1, 4, 1000])))
        assert rows == case.expected(), case.sql()
        assert left(Path(folder)) == []
    event(f"{6 - len(list(stops))} stops")


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


@pytest.mark.parametrize("architecture", ["joins", "static"])
def test_a_batch_that_came_with_the_last_one_is_lost(architecture, tmp_path, monkeypatch):
    """The rule of one batch at a time, taken away: what follows the last batch meets too little."""
    case = large(3, rows=60, count_only=True)
    options = symmetric(architecture, tmp_path, online=True)
    looks = range(3, 60, 4)
    assert all(stopped(case, options, looks))
    true = SpillingEddy._scheduled
    monkeypatch.setattr(SpillingEddy, "_scheduled", lambda *a, **k: replace(true(*a, **k), weights=None))
    assert not all(stopped(case, options, looks))
