"""Under skew a run holds no more than the tuples that are to be held need, and makes others in pieces."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import event, given, strategies as st

from millrace.engine.architectures.stems import joined
from millrace.engine.runs.run_of import run_of
from millrace.engine.state import stairs
from millrace.engine.state.stair import STAIR
from millrace.engine.state.stem import SteM
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, MIGRATIONS, POLICY_NAMES, Options
from tests.engine.eddy.answers import schedules
from tests.engine.eddy.holding import Alive, Holding, sizes
from tests.engine.eddy.oracle import multiset, skewed_cases
from tests.engine.laws import examples
from tests.engine.state.rig import Rig, Tables


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@examples(12)
@given(data=st.data())
def test_memory_under_skew_is_bounded(architecture: str, data: st.DataObject) -> None:
    """State is linear in the tuples that the architecture stores by definition; the buffer in nothing.

    That is: base tuples once each; with STAIRs, of each connected set of relations no more tuples than its
    join has, each in one STAIR (where state is moved, or stored as base tuples, in one at each join at its
    border); in flight, what arrived together, and for each step and each join that a part of a batch may be
    sent to one batch that probes and one of what it found, however many results there are.
    """
    case = data.draw(skewed_cases(rows=32, count_only=True))
    batch = data.draw(st.sampled_from([32, 100]))
    options = Options(
        architecture=architecture,
        migration=data.draw(st.sampled_from(MIGRATIONS)),
        intermediate=data.draw(st.booleans()),
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=batch,
        reoptimize_every=data.draw(st.sampled_from([10, 1000])),
    )
    schedule = data.draw(schedules(case))
    run = run_of(case.spec, case.batches(batch), options, schedule=schedule, clock=VirtualClock())
    holding = Holding(run)
    event("in turn" if schedule.interleaved else "one after the other")
    table = pa.Table.from_batches(list(run.run()), case.spec.output_schema)
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


PIECE = 16
HOT: Tables = {
    "r": {"a": [1] * 20},
    "s": {"a": [1] * 20, "b": [1] * 20},
    "t": {"b": [1] * 20, "c": [1] * 20},
    "u": {"c": [1]},
}


def hot() -> Rig:
    """Return a chain in which everything meets everything, with all tuples of r, s and t."""
    rig = Rig(HOT, ["r.a = s.a", "s.b = t.b", "t.c = u.c"], PIECE)
    rig._invariants.check = lambda: None  # type: ignore[method-assign]
    for alias in "rst":
        rig.arrive(" ".join(f"{alias}{i}" for i in range(1, 21)), s="rs", t="st", rs="st", st="rs", rst="tu")
    return rig


def test_state_is_rebuilt_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pieces of base tuples match, 400 pairs and 8,000 triples, is not in memory beside the state."""
    alive, rig = Alive(), hot()
    monkeypatch.setattr(stairs, "_PIECE", PIECE)
    monkeypatch.setattr(STAIR, "matches", alive.counted(STAIR.matches))
    rig.stairs.rebuild(rig.stairs.tree, rig.route(s="rs", t="st", rs="st", st="rs", rst="tu"))
    assert rig.stairs.recomputed >= 8000
    assert alive.most <= 2 * 2 * PIECE


def test_partial_results_are_made_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Base tuples are joined for the occasion; what a batch of them matches is not in memory at once."""
    alive, rig = Alive(), hot()
    monkeypatch.setattr(SteM, "probe", alive.counted(SteM.probe))
    found = sum(batch.size for batch in joined(rig.state_of_eddy.stems, rig.graph, rig.span("rst"), PIECE))
    assert found == 8000
    assert alive.most <= 2 * 2 * PIECE
