"""Partial results: DuckDB's rows over what has arrived, with nulls where relations are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, event, given, strategies as st

from millrace.engine.architectures.stairs import StairState
from millrace.engine.arrivals.schedule import STALLED, Schedule
from millrace.engine.expressions import relations_of
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.runs.static import StaticPlan
from millrace.engine.spec import JoinSpec
from millrace.engine.state.stair import STAIR
from millrace.errors import InputError, StateError
from millrace.limits.clock import VirtualClock
from millrace.options import MIGRATIONS, POLICY_NAMES, Options
from tests.engine.eddy.blocks import Rows, batches
from tests.engine.eddy.oracle import Case, cases, multiset
from tests.engine.eddy.test_stalls import chain
from tests.engine.laws import examples

MOVING = ("stems", "joins", "stairs")


def prefix(case: Case, missing: list[str], arrived: dict[str, int]) -> Rows:
    """Return DuckDB's rows over the first rows of the other relations, with nulls for the missing ones."""
    spec = case.spec
    relations = tuple(r for r in spec.relations if r.alias not in missing)
    kept = {r.alias for r in relations}
    partial = JoinSpec(
        relations,
        implied(spec, kept),
        tuple(p for p in spec.residuals if set(relations_of(p)) <= kept),
        tuple(o for o in spec.output if o.source.relation in kept),
        spec.count_only,
    )
    tables = {alias: case.tables[alias].slice(0, arrived[alias]) for alias in kept}
    found: Rows = Counter()
    if spec.count_only or partial.output:
        found = Case(partial, tables).expected()
    else:  # a row for each, of nulls alone
        counted = Case(replace(partial, count_only=True), tables).expected()
        found[()] = next(iter(counted))[0]
        found = +found
    if spec.count_only:
        return found
    names = [o.name for o in partial.output]
    places = [names.index(o.name) if o.name in names else None for o in spec.output]
    wide: Rows = Counter()
    for row, count in found.items():
        wide[tuple(None if p is None else row[p] for p in places)] += count
    return wide


def connected(spec: JoinSpec, kept: set[str]) -> bool:
    """Return whether equalities, implied ones too, hold relations together."""
    reached = set(sorted(kept)[:1])
    for _ in spec.relations:
        for e in implied(spec, kept):
            ends = {e.left.relation, e.right.relation}
            reached |= ends if ends & reached else set()
    return bool(kept) and reached == kept


def implied(spec: JoinSpec, kept: set[str]) -> tuple[Any, ...]:
    """Return the equalities between remaining relations, those that only others implied among them."""
    groups: list[tuple[Any, set[Any]]] = []
    for e in spec.equalities:
        touching = [g for g in groups if g[0] == e.type and g[1] & {e.left, e.right}]
        groups = [g for g in groups if g not in touching]
        groups.append((e.type, {e.left, e.right}.union(*(g[1] for g in touching))))
    found = []
    for kind, refs in groups:
        inside = sorted((r for r in refs if r.relation in kept), key=str)
        # What cannot meet a missing relation, for its key is null, is no part of any result.
        found += [replace(spec.equalities[0], left=inside[0], right=r, type=kind) for r in inside]
    return tuple(found)


@examples(40)
@given(st.data())
def test_partial_results_are_duckdbs_over_what_has_arrived(data: st.DataObject) -> None:
    """Asked by a source at a random point of stasis, for random relations; and the run goes on unharmed."""
    case = data.draw(cases(5))
    assume(len(case.spec.relations) > 1)
    options = Options(
        architecture=data.draw(st.sampled_from(MOVING)),
        migration=data.draw(st.sampled_from(MIGRATIONS)),
        intermediate=data.draw(st.booleans()),
        policy=data.draw(st.sampled_from(POLICY_NAMES)),
        batch_size=data.draw(st.sampled_from([1, 2, 7, 100])),
        reoptimize_every=data.draw(st.sampled_from([1, 10, 1000])),
        online=True,
    )
    order = tuple(data.draw(st.permutations(range(len(case.spec.relations)))))
    pieces = batches(case, data.draw(st.sampled_from([1, 2, 5])))
    asker, when = data.draw(st.sampled_from(sorted(pieces))), data.draw(st.integers(0, 4))
    missing = data.draw(st.lists(st.sampled_from(sorted(pieces)), unique=True, max_size=3))
    arrived = dict.fromkeys(pieces, 0)
    seen: list[str] = []

    def source(alias: str) -> Iterator[Any]:
        for i, piece in enumerate([*pieces[alias], None]):
            if alias == asker and i == min(when, len(pieces[alias])):
                ask()
            yield STALLED if piece is None else piece

    def ask() -> None:
        kept = set(pieces) - set(missing)
        if not connected(case.spec, kept):
            with pytest.raises(InputError, match=r"no join predicate connects|without every relation"):
                eddy.partial(missing)
            seen.append("refused")
            return
        rows = list(eddy.partial(missing))
        got = multiset(pa.Table.from_batches(rows, case.spec.output_schema.with_metadata(None)))
        want = prefix(case, missing, arrived)
        assert got == want, f"missing {want - got}, too much {got - want}"
        seen.append("answered")

    schedule = Schedule(None, True, order)
    sources = {alias: source(alias) for alias in pieces}
    eddy = EddyRun(case.spec, sources, options, schedule=schedule, clock=VirtualClock())
    admit = eddy._admit

    def admitted(arrivals: Any) -> None:
        for relation, batch in arrivals:
            if isinstance(batch, pa.RecordBatch):
                arrived[case.spec.aliases[relation]] += batch.num_rows
        admit(arrivals)

    eddy._admit = admitted  # type: ignore[method-assign]
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    event(f"{options.architecture}: {seen}")
    assert rows == case.expected()


def paused(options: Options, missing: list[str], case: Case | None = None) -> tuple[Rows, EddyRun]:
    """Return the partial results of a chain while ``t`` has stalled, and check the answer afterwards."""
    case = case or chain()
    pieces = batches(case, 8)
    sources: dict[str, Any] = {**pieces, "t": [pieces["t"][0], *([None] * 20), *pieces["t"][1:]]}
    eddy = EddyRun(case.spec, sources, replace(options, online=True), clock=VirtualClock())
    found: list[pa.RecordBatch] = []
    rows = []
    for batch in eddy.run():
        rows.append(batch)
        if not found and eddy._known_stalled:
            found = list(eddy.partial(missing))
            assert all(field.nullable for field in found[0].schema)
    assert multiset(pa.Table.from_batches(rows, case.spec.output_schema)) == case.expected()
    return multiset(pa.Table.from_batches(found)), eddy


@pytest.mark.parametrize("architecture", MOVING)
def test_partial_results_while_a_source_has_stalled(architecture: str) -> None:
    """The caller gets control at the batch that run() yields when everything has stalled."""
    got, _ = paused(Options(architecture=architecture), ["t"])
    assert got == prefix(chain(), ["t"], {"r": 40, "s": 40, "t": 8})
    assert got.total() == sum(1 for i in range(40) for j in range(40) if i % 8 == j % 8)


def test_stairs_hold_partial_results_for_later() -> None:
    """They are read from STAIRs, not joined for the occasion: no index on base tuples was made."""
    _, eddy = paused(Options(architecture="stairs", migration="never"), ["t"])
    assert isinstance(eddy._state, StairState)
    assert all(not stem.base._indexes for stem in eddy._state.stems)
    assert eddy.figures().recomputed_tuples > 0


@pytest.mark.broken_rule
def test_a_tuple_in_two_stairs_is_one_partial_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tuple counts once, wherever it is held: the same contents read twice would be found out."""
    right = STAIR.contents

    def doubled(self: STAIR) -> Iterator[Any]:
        yield from right(self)
        yield from right(self)

    monkeypatch.setattr(STAIR, "contents", doubled)
    got, _ = paused(Options(architecture="stairs"), ["t"])
    assert got == prefix(chain(), ["t"], {"r": 40, "s": 40, "t": 8})
    monkeypatch.setattr("millrace.engine.architectures.stairs.each_once", iter)
    got, _ = paused(Options(architecture="stairs"), ["t"])
    assert got != prefix(chain(), ["t"], {"r": 40, "s": 40, "t": 8})


# When they cannot be had


def test_other_relations_must_be_connected() -> None:
    """Without the middle of a chain the rest falls apart; the error names the parts."""
    eddy = EddyRun(chain().spec, batches(chain(), 8), Options(online=True))
    with pytest.raises(InputError, match=r"connects \['r'\] and \['t'\]; ask for partial results of one"):
        eddy.partial(["s"])
    with pytest.raises(InputError, match="leave at least one"):
        eddy.partial(["r", "s", "t"])
    with pytest.raises(InputError, match="without 'u': there is"):
        eddy.partial(["u"])


def test_a_streamed_relation_is_not_kept() -> None:
    """What is not built cannot be joined again."""
    eddy = EddyRun(chain().spec, batches(chain(), 8), Options(), stream="t")
    with pytest.raises(InputError, match=r"'t' is streamed without being kept.*online=True"):
        eddy.partial(["r"])
    assert list(eddy.partial(["t"])) == []


def test_not_while_tuples_are_in_flight() -> None:
    """With small batches run() yields in the middle of its work."""
    case = chain()
    eddy = EddyRun(case.spec, batches(case, 40), Options(online=True, batch_size=2), clock=VirtualClock())
    refused = 0
    for _ in eddy.run():
        if eddy._buffer.is_flying:
            with pytest.raises(StateError, match=r"while tuples are in flight.*ask when"):
                eddy.partial(["t"])
            refused += 1
    assert refused > 0


def test_not_after_the_run_has_gone_on() -> None:
    """Rows that are taken too late would be of two states."""
    case = chain()
    pieces = batches(case, 8)
    sources: dict[str, Any] = {**pieces, "t": [*([None] * 20), *pieces["t"]]}
    eddy = EddyRun(case.spec, sources, Options(online=True), clock=VirtualClock())
    run = eddy.run()
    next(run)
    late = eddy.partial(["t"])
    list(run)
    with pytest.raises(StateError, match="gone on before all partial results were taken"):
        list(late)


def test_a_static_plan_has_none() -> None:
    """The error says which architectures have them."""
    plan = StaticPlan(chain().spec, batches(chain(), 8), Options(architecture="static"))
    with pytest.raises(InputError, match="'stairs', 'stems' or 'joins' can"):
        plan.partial(["t"])
