"""STAIRs that store base tuples alone: right answers with the memory footprint of SteMs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, note, settings, strategies as st

from millrace.engine.architectures.stairs import StairState
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state.stair import STAIR
from millrace.engine.tuples import TupleBatch
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, POLICY_NAMES, Options
from tests.engine.eddy.blocks import batches
from tests.engine.eddy.oracle import Case, cases, multiset
from tests.engine.eddy.test_laws import schedules
from tests.engine.eddy.test_stalls import chain


def ran(case: Case, options: Options, schedule: Schedule | None = None, chunk: int = 3) -> EddyRun:
    """Run a block, check its rows, and check at every point of stasis that only base tuples are held."""
    eddy = EddyRun(case.spec, batches(case, chunk), options, schedule=schedule, clock=VirtualClock())
    state = eddy._state
    if isinstance(state, StairState):

        def rest(state: StairState = state, right: Any = state.at_stasis) -> bool:
            for _, stair in state.stairs.stairs():
                for signature, segment in stair.segments.items():
                    assert not segment.live or signature.span == 1 << stair.owner
            return bool(right())

        state.at_stasis = rest  # type: ignore[method-assign]
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    assert rows == case.expected(), case.sql()
    return eddy


@settings(max_examples=75, deadline=None, derandomize=True)
@given(st.data())
def test_base_tuples_suffice(data: st.DataObject) -> None:
    """Under all policies, migrations and schedules the answer is DuckDB's, and no STAIR holds more."""
    case = data.draw(cases(5))
    options = Options(
        architecture="stairs",
        intermediate=False,
        migration=data.draw(st.sampled_from([None, *MIGRATIONS])),
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=data.draw(st.sampled_from([1, 2, 7, 100])),
        reoptimize_every=data.draw(st.sampled_from([1, 3, 1000])),
        seed=data.draw(st.integers(0, 3)),
    )
    schedule = data.draw(schedules(case))
    note(f"{case.sql()}\n{options}\n{schedule}")
    ran(case, options, schedule, data.draw(st.sampled_from([1, 2, 5])))


def test_the_footprint_is_that_of_base_tuples() -> None:
    """At most each base tuple once, and a pointer to it in each STAIR of its relation: 2 + 3 + 2 times 40."""
    whole = Options(
        architecture="stairs",
        online=True,
        batch_size=8,
        migration="never",
        policy="fixed",
        order=("r", "s", "t"),
    )
    base = replace(whole, intermediate=False)
    case = chain(distinct=2)
    small, large = ran(case, base, chunk=8).figures(), plain(case, whole).figures()
    assert small.peak_state <= (2 + 3 + 2) * 40
    assert large.peak_state > 2 * small.peak_state
    assert sum(one.demoted for one in small.state) > 0


def plain(case: Case, options: Options) -> EddyRun:
    """Run a block that stores what it likes."""
    eddy = EddyRun(case.spec, batches(case, 8), options, clock=VirtualClock())
    assert multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema)) == case.expected()
    return eddy


def test_demoted_tuples_must_be_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule broken: a part that is stored again for every tuple that had it makes results twice."""

    def careless(self: STAIR, batch: TupleBatch) -> TupleBatch:
        part = self.part(batch, 1 << self.owner)
        self.insert(part)
        return part.cut(0, 0)

    monkeypatch.setattr(STAIR, "demoted_to_base", careless)
    with pytest.raises(AssertionError):
        ran(chain(), Options(architecture="stairs", intermediate=False, online=True, batch_size=4))
