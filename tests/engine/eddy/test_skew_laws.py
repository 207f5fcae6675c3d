"""Laws under skew: right answers, and no more memory than the tuples that are to be held need."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import event, given, settings, strategies as st

from millrace.engine.architectures.stems import joined
from millrace.engine.migration import MIGRATION_POLICIES
from millrace.engine.runs.run_of import run_of
from millrace.engine.state import stairs
from millrace.engine.state.stair import STAIR
from millrace.engine.state.stem import SteM
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, POLICY_NAMES, Options
from tests.engine.eddy.blocks import batches
from tests.engine.eddy.oracle import Case, multiset
from tests.engine.eddy.skew import Alive, Holding, sizes, skewed
from tests.engine.eddy.test_laws import schedules
from tests.engine.state.rig import Rig, Tables


@st.composite
def settings_of(draw: st.DrawFn, architecture: str, batch: int) -> Options:
    """Draw all that bears on what an architecture holds."""
    return Options(
        architecture=architecture,
        migration=draw(st.sampled_from(sorted(MIGRATION_POLICIES))) if architecture == "stairs" else None,
        intermediate=draw(st.booleans()),
        policy=draw(st.sampled_from(POLICY_NAMES)),
        batch_size=batch,
        reoptimize_every=draw(st.sampled_from([10, 1000])),
        seed=draw(st.integers(0, 3)),
    )


def held(data: st.DataObject, architecture: str, case: Case, batch: int) -> tuple[pa.Table, Holding, Options]:
    """Run a block with drawn settings; return its result, what the run held, and the settings."""
    options = data.draw(settings_of(architecture, batch))
    schedule = data.draw(schedules(case))
    run = run_of(case.spec, batches(case, batch), options, schedule=schedule, clock=VirtualClock())
    holding = Holding(run)
    event("in turn" if schedule.interleaved else "one after the other")
    return pa.Table.from_batches(list(run.run()), case.spec.output_schema), holding, options


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_skew_gives_the_oracles_rows(architecture: str, data: st.DataObject) -> None:
    """One key has half of the rows, in every relation and every key column."""
    case = data.draw(skewed(rows=14))
    table, *_ = held(data, architecture, case, data.draw(st.sampled_from([1, 3, 16, 1000])))
    assert multiset(table) == case.expected(), case.sql()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_memory_under_skew_is_bounded(architecture: str, data: st.DataObject) -> None:
    """State is linear in the tuples that the architecture stores by definition; the buffer in nothing.

    That is: base tuples once each; with STAIRs, of each connected set of relations no more tuples than its
    join has, each in one STAIR (where state is moved, or stored as base tuples, in one at each join at its
    border); in flight, what arrived together, and for each step and each join that a part of a batch may be
    sent to one batch that probes and one of what it found, however many results there are.
    """
    case = data.draw(skewed(rows=32, count_only=True))
    batch = data.draw(st.sampled_from([32, 100]))
    table, holding, options = held(data, architecture, case, batch)
    assert multiset(table) == case.expected(), case.sql()
    rows = sum(table.num_rows for table in case.tables.values())
    assert holding.base <= rows
    most = sizes(case)
    is_moved = options.architecture == "stairs" or not options.intermediate
    copies = len(case.tables) - 1 if is_moved else 1
    for span, tuples in holding.stored.items():
        assert tuples <= copies * most[span], f"{tuples} of {span:b}"
    assert holding.excess <= 0
    count = len(case.tables)
    most_in_flight = (2 * count * (count - 1) + count) * batch
    assert holding.in_flight <= most_in_flight
    assert holding.bytes_in_flight <= 4 * count * most_in_flight


HOT_PAIR: Tables = {"r": {"a": [1] * 60}, "s": {"a": [1] * 60, "b": [1] * 60}, "t": {"b": [1]}}


def named(alias: str) -> str:
    """Return the names of all tuples of a relation of the hot pair."""
    return " ".join(f"{alias}{i}" for i in range(1, 61))


def test_state_is_rebuilt_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What matches a piece of base tuples, in all 3,600 pairs, is not in memory at once beside the state."""
    alive = Alive()
    rig = Rig(HOT_PAIR, ["r.a = s.a", "s.b = t.b"])
    for alias in "rs":
        rig.arrive(named(alias), s="rs")
    monkeypatch.setattr(stairs, "_PIECE", 16)
    monkeypatch.setattr(STAIR, "matches", alive.counted(STAIR.matches))
    rig.stairs.rebuild(rig.stairs.tree, rig.route(s="rs"))
    assert rig.stairs.recomputed == 3600
    assert alive.most <= 2 * 16
    rig.check()


def test_partial_results_are_made_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base tuples are joined for the occasion; what a batch of them matches is not in memory at once."""
    alive = Alive()
    rig = Rig(HOT_PAIR, ["r.a = s.a", "s.b = t.b"])
    for alias in "rs":
        rig.arrive(named(alias), s="rs")
    monkeypatch.setattr(SteM, "probe", alive.counted(SteM.probe))
    found = sum(batch.size for batch in joined(rig.state_of_eddy.stems, rig.graph, rig.span("rs"), 16))
    assert found == 3600
    assert alive.most <= 2 * 16
