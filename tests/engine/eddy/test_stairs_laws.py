"""Whatever is routed, moved, settled and replanted, the answer is DuckDB's and the invariants hold."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import event, given, note, settings, strategies as st

from millrace.engine.architectures.stairs import StairState
from millrace.engine.expressions import Call, Column, ColumnRef
from millrace.engine.migration import MIGRATION_POLICIES, Change, MigrationPolicy
from millrace.engine.migration.estimate import MigrationEstimate
from millrace.engine.migration.placement import Misplaced
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.run_of import run_of
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import ARCHITECTURES, MIGRATIONS, POLICY_NAMES, Options
from millrace.predicates import PredicateSpec
from tests.engine.eddy.blocks import Rows, batches
from tests.engine.eddy.oracle import Case, answer_of, cases, multiset
from tests.engine.eddy.test_laws import schedules
from tests.engine.eddy.unrest import Unrest
from tests.engine.state.rig import Rig, Tables

ELSEWHERE = {"stems"}
"""Architectures without STAIRs, whose laws are in ``test_laws.py``."""
WITH_JOINS = tuple(name for name in ARCHITECTURES if name not in ELSEWHERE)


@st.composite
def settings_of(draw: st.DrawFn) -> Options:
    """Draw an architecture with joins and everything that bears on its routing and moving."""
    return Options(
        architecture=draw(st.sampled_from(["stairs", *WITH_JOINS])),
        migration=draw(st.sampled_from([None, *sorted(MIGRATION_POLICIES)])),
        policy=draw(st.sampled_from(POLICY_NAMES)),
        batch_size=draw(st.sampled_from([1, 2, 3, 7, 100, 10_000])),
        reoptimize_every=draw(st.sampled_from([1, 3, 10, 1000])),
        seed=draw(st.integers(0, 3)),
    )


def answer(data: st.DataObject, case: Case, often: float) -> Rows:
    """Run a block with drawn settings, its state moved at random and checked; return its rows."""
    options = data.draw(settings_of())
    schedule = data.draw(schedules(case))
    sources = batches(case, data.draw(st.sampled_from([1, 2, 5, 1000])))
    run = run_of(case.spec, sources, options, schedule=schedule, clock=VirtualClock())
    steps: list[str] = []
    if isinstance(run, EddyRun) and isinstance(run._state, StairState):
        if data.draw(st.booleans()):
            hope(run._state)
        steps = Unrest(run._state, case.spec, data.draw(st.integers(0, 1 << 30)), often).steps
    try:
        return multiset(pa.Table.from_batches(list(run.run()), case.spec.output_schema))
    finally:
        note(f"{case.sql()}\n{options}\n{schedule}\n{steps}")
        event(f"{options.architecture}, {'moved' if steps else 'unmoved'}")


def hope(state: StairState) -> None:
    """Let every move seem worth it, so that policies that weigh move more than so few tuples are worth."""
    estimate = state._estimator.estimate

    def hopeful(wrong: Misplaced) -> list[MigrationEstimate]:
        return [replace(each, cost=1.0, saving=1e9) for each in estimate(wrong)]

    state._estimator.estimate = hopeful  # type: ignore[method-assign]


def law(data: st.DataObject, often: float) -> None:
    """Run a random block and compare its rows with DuckDB's."""
    case = data.draw(cases(max_relations=6))
    rows, expected = answer(data, case, often), case.expected()
    assert rows == expected, f"missing {expected - rows}, too much {rows - expected}: {case.sql()}"


@settings(max_examples=55, deadline=None, derandomize=True)
@given(st.data())
def test_any_moves_leave_the_oracles_rows(data: st.DataObject) -> None:
    """Demotions, promotions, settling and other spanning trees at random points of stasis."""
    law(data, often=0.6)


@settings(max_examples=35, deadline=None, derandomize=True)
@given(st.data())
def test_own_migration_leaves_the_oracles_rows(data: st.DataObject) -> None:
    """Nobody moves anything but the migration policy; B+ holds whenever state is not enforcing."""
    law(data, often=0.0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.data())
def test_what_predicates_raise_survives_moves(data: st.DataObject) -> None:
    """An error surfaces exactly if nothing else rejects the tuple, wherever the tuple has been stored."""
    case = data.draw(cases(max_relations=4))
    read = data.draw(st.permutations(case.spec.aliases))[: data.draw(st.integers(1, 2))]
    call = Call(PredicateSpec("picky", picky), tuple(Column(ColumnRef(alias, "k0")) for alias in read))
    place = data.draw(st.integers(0, len(case.spec.residuals)))
    residuals = (*case.spec.residuals[:place], call, *case.spec.residuals[place:])
    raising, passing = f"abs({total(read)}) % 4 = 1", f"abs({total(read)}) % 2 = 0"
    fails = rows_of(Case(replace(case.spec, output=(), count_only=True), case.tables), raising)
    expected = rows_of(case, passing) if fails == {(0,): 1} else None
    try:
        rows = answer(data, Case(replace(case.spec, residuals=residuals), case.tables), often=0.6)
    except ExecutionError:
        rows = None
    assert rows == expected, "None is an error"


class All(MigrationPolicy):
    """Moves everything that is worth it."""

    weighs = True

    def allowance(self, change: Change) -> int:
        """Return all tuples."""
        return change.tuples


def test_promotions_chosen_together_may_undo_each_other() -> None:
    """Promoting s1a1 in S.r by S join T inserts it beside s1b1r1, which was to be promoted next.

    They agree on s1, so s1 takes the place of both in S.t; nothing is left there that could be promoted.
    """
    tables: Tables = {"s": {key: [1] for key in "abrt"}, **{key: {key: [1]} for key in "abrt"}}
    rig = Rig(tables, [f"s.{key} = {key}.{key}" for key in "abrt"])
    for name in ("a1", "b1", "r1"):
        rig.arrive(name)
    rig.arrive("s1", s="sr", sr="st")
    rig.promote("s", "sr", "sa", "s1")
    rig.promote("s", "st", "sb", "s1r1")
    assert (rig.held("s", "sr"), rig.held("s", "st")) == (["s1a1"], ["s1b1r1"])
    hope(rig.state_of_eddy)
    for relations, pair in {"s": "sa", "sa": "st", "sat": "sr", "satr": "sb"}.items():
        rig.state_of_eddy._latest[rig.span(relations)] = rig.edge(pair)
    rig.state_of_eddy._follow(All())
    assert (rig.held("s", "sr"), rig.held("s", "st")) == ([], ["s1"])
    rig.check()
    rig.arrive("t1", st="sr", sat="sr", srt="sa", sart="sb", sbrt="sa", sbt="sr", sabt="sr")
    assert rig.results == ["s1a1b1r1t1"]


def picky(*values: int | None) -> bool | None:
    """A predicate that raises for every fourth value."""
    if None in values:
        return None
    known = abs(sum(values))  # type: ignore[arg-type]
    if known % 4 == 1:
        raise ArithmeticError(f"{known} is one of those")
    return known % 2 == 0


def total(aliases: list[str]) -> str:
    """Return the sum of the relations' ``k0`` for DuckDB."""
    return " + ".join(f"{alias}.k0::HUGEINT" for alias in aliases)


def rows_of(case: Case, conjunct: str) -> Rows:
    """Return DuckDB's rows of a block with one more conjunct, in DuckDB's words."""
    sql = case.sql()
    sql += (" AND " if " WHERE " in sql else " WHERE ") + f"({conjunct})"
    return answer_of(sql, case.tables)


def test_every_architecture_and_migration_is_tested() -> None:
    """What options allow is what the laws run: nothing is left out silently."""
    assert set(WITH_JOINS) | ELSEWHERE == set(ARCHITECTURES)
    assert set(MIGRATION_POLICIES) == set(MIGRATIONS)
