"""Every rule of SteMs with access modules and shared tuples is needed: without it, some answer is wrong.

The rules are those of Raman, Deshpande & Hellerstein 2003, Table 2. Each test takes one away and lets random
routing search a fixed set of small blocks for a wrong answer, or for a run that cannot end. It must find one,
and must find none with the rule in place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace.engine.arrivals.arrivals as access
from millrace.engine.architectures.stems import SteMs
from millrace.engine.arrivals.access_modules import Scan
from millrace.engine.arrivals.arrivals import Arrivals
from millrace.engine.arrivals.paths import Paths
from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.expressions import Column, ColumnRef, Compare
from millrace.engine.state.base_tuples import BaseTuples
from millrace.engine.state.duplicates import Duplicates
from millrace.engine.state.ordered import OrderedIndex
from millrace.engine.state.stem import SteM
from millrace.engine.state.waiting import Waiting
from millrace.errors import MillraceError
from millrace.options import Options
from tests.engine.eddy.access_cases import IndexPlan, Plan, Rows, ScanPlan, run, with_self_joins
from tests.engine.eddy.blocks import block, chain
from tests.engine.eddy.oracle import Case

Patch = pytest.MonkeyPatch


def forget_prior(patch: Patch) -> None:
    """ProbeCompletion, first half: a tuple that a SteM bounced may go to other SteMs too."""
    completions = SteMs._completions

    def careless(self: SteMs, signature: Any, prior: int) -> Any:
        return (*completions(self, signature, prior), *self.joins(replace(signature, prior=None)))

    patch.setattr(SteMs, "_completions", careless)


def leave_early(patch: Patch) -> None:
    """ProbeCompletion, second half: a prior prober may leave before it was sent to an AM."""
    patch.setattr(SteMs, "_completions", lambda *_: ())


def never_bounce(patch: Patch) -> None:
    """SteM BounceBack: a SteM claims to have all matches although no EOT says so."""
    patch.setattr(SteM, "missing", lambda *_: np.empty(0, np.int64))


def bounce_duplicates(patch: Patch) -> None:
    """SteM BounceBack: a tuple that is here already is built, and bounced, again."""
    patch.setattr(Duplicates, "fresh", lambda _, chunk, __: np.arange(chunk.num_rows))


def probe_unbound(patch: Patch) -> None:
    """A SteM without a scan may be probed by tuples that bind none of its indexes."""
    patch.setattr(Paths, "is_open", lambda *_: True)


def trust_answers(patch: Patch) -> None:
    """An index that returns more than it was asked for is believed."""
    patch.setattr(access, "agreeing", lambda rows, *_: rows)


def forget_last_match(patch: Patch) -> None:
    """LastMatchTimeStamp: a tuple that probes again meets the rows it has met already."""
    start = SteM.start
    patch.setattr(SteM, "start", lambda self, batch: start(self, replace(batch, seen=0)))


def never_release(patch: Patch) -> None:
    """A prior prober that is not in SteMs never probes again."""
    patch.setattr(Waiting, "release", lambda *_: [])


def believe_broken_scans(patch: Patch) -> None:
    """A scan that breaks off counts as the EOT of the relation."""
    poll = Scan.poll

    def careless(self: Scan) -> Any:
        batch = poll(self)
        if self.state == "broken":
            self.state = "complete"
        return batch

    patch.setattr(Scan, "poll", careless)


def forget_answers(patch: Patch) -> None:
    """A run ends only when every binding that was asked for has its EOT."""
    patch.setattr(Arrivals, "_missing", lambda *_: False)


def forget_roles(patch: Patch) -> None:
    """Tie-break: a tuple has one timestamp in all roles, so it never meets itself."""
    stamps, older = BaseTuples.stamps, BaseTuples.older
    patch.setattr(BaseTuples, "stamps", lambda self, rows, _: stamps(self, rows, 0))
    patch.setattr(BaseTuples, "older", lambda self, given, _: older(self, given, 0))


def forget_stamps(patch: Patch) -> None:
    """TimeStamp: a match goes to both of its components, not only to the later one."""
    start = SteM.start
    patch.setattr(SteM, "start", lambda self, batch: start(self, replace(batch, stamps=None)))


def match_nulls_of_roles(patch: Patch) -> None:
    """A shared tuple whose key is null in one role takes part in the others only."""
    patch.setattr(BaseTuples, "in_role", lambda *_: None)


def order_forgets_stamps(patch: Patch) -> None:
    """TimeStamp holds for a search by an inequality too."""
    probe = OrderedIndex.probe
    patch.setattr(OrderedIndex, "probe", lambda self, *given: probe(self, *given[:5], None))


def order_keeps_nulls(patch: Patch) -> None:
    """A null compares with nothing."""
    insert = OrderedIndex.insert
    patch.setattr(OrderedIndex, "insert", lambda self, values, _: insert(self, values, None))


INDEXED = {"b": Plan(source=False, indexes=(IndexPlan(("k",), 1.0), IndexPlan(("j",), 2.0, in_flight=1)))}
TWO_AT_ONCE = {"b": Plan(source=False, indexes=(IndexPlan(("k",)), IndexPlan(("j",))))}
AT_ONCE = {"b": Plan(source=False, indexes=(IndexPlan(("k",)),))}
BY_BOTH = {"b": Plan(source=False, indexes=(IndexPlan(("k", "j"), 1.0),))}
LAVISH = {"b": Plan(source=False, indexes=(IndexPlan(("k",), generous=True), IndexPlan(("j",))))}
BY_KEY = {"b": Plan(source=False, indexes=(IndexPlan(("k",), 1.0),))}
GENEROUS = {"b": Plan(source=False, indexes=(IndexPlan(("k",), 1.0, generous=True),))}
COMPETING = {"b": Plan(scans=(ScanPlan(stall=(1, 5.0)), ScanPlan(rows=1)))}
BROKEN = {"b": Plan(source=False, scans=(ScanPlan(rows=1), ScanPlan(every=1.0)))}
BOTH = {"b": Plan(source=False, scans=(ScanPlan(every=0.4),), indexes=(IndexPlan(("k",), 0.5),))}


def cyclic(seed: int) -> Case:
    """Return a triangle, the example of section 3.4."""
    draw = random.Random(seed)

    def table(*names: str) -> pa.Table:
        n = draw.randint(3, 8)
        keys = {name: pa.array([draw.randint(0, 2) for _ in range(n)], pa.int64()) for name in names}
        return pa.table({"id": pa.array(range(n), pa.int32()), **keys})

    tables = {"a": table("k", "i"), "b": table("k", "j"), "c": table("j", "i")}
    return block(tables, ["a.k = b.k", "b.j = c.j", "a.i = c.i"])


def selves(seed: int, roles: int = 2, nulls: float = 0.0) -> Case:
    """Return a relation joined with itself, on different columns."""
    draw = random.Random(seed)
    n = draw.randint(3, 8)

    def keys() -> pa.Array:
        return pa.array([None if draw.random() < nulls else draw.randint(0, 2) for _ in range(n)], pa.int64())

    table = pa.table({"id": pa.array(range(n), pa.int32()), "k": keys(), "j": keys()})
    names = "abc"[:roles]
    case = block(dict.fromkeys(names, table), [f"{a}.j = {b}.k" for a, b in pairwise(names)])
    return with_self_joins(case)


def three_selves(seed: int) -> Case:
    return selves(seed, 3)


def selves_with_gaps(seed: int) -> Case:
    return selves(seed, nulls=0.4)


def less(seed: int) -> Case:
    """Return ``a.k < c.j`` over relations that no equality ties, with nulls among the values."""
    tables = {alias: chain(seed, nulls=0.2).tables[alias] for alias in "ac"}
    case = block(tables, [])
    below = Compare("<", Column(ColumnRef("a", "k")), Column(ColumnRef("c", "j")), pa.int64())
    return replace(case, spec=replace(case.spec, residuals=(below,)))


@dataclass(frozen=True)
class Rule:
    away: Callable[[Patch], None]
    cases: Callable[[int], Case] = chain
    plans: dict[str, Plan] = field(default_factory=dict)
    stream: str | None = None
    online: bool = True


RULES = [
    Rule(forget_prior, cyclic, TWO_AT_ONCE),
    Rule(leave_early, chain, INDEXED),
    Rule(leave_early, cyclic, BY_KEY),
    Rule(never_bounce, chain, INDEXED),
    Rule(never_bounce, chain, BY_KEY, "a", online=False),
    Rule(bounce_duplicates, chain, INDEXED),
    Rule(bounce_duplicates, chain, COMPETING),
    Rule(bounce_duplicates, chain, BOTH),
    Rule(probe_unbound, chain, BY_BOTH),
    Rule(trust_answers, chain, GENEROUS),
    Rule(forget_last_match, chain, LAVISH, "a", online=False),
    Rule(never_release, chain, BY_KEY, "a", online=False),
    Rule(believe_broken_scans, chain, BROKEN),
    Rule(forget_answers, chain, INDEXED),
    Rule(forget_stamps, chain, AT_ONCE),
    Rule(forget_roles, selves),
    Rule(forget_roles, three_selves),
    Rule(forget_stamps, selves),
    Rule(match_nulls_of_roles, selves_with_gaps),
    Rule(order_forgets_stamps, less),
    Rule(order_keeps_nulls, less),
]


@lru_cache
def expected(cases: Callable[[int], Case], seed: int) -> tuple[Case, Rows]:
    case = cases(seed)
    return case, case.expected()


def wrong_answers(rule: Rule) -> Iterator[bool]:
    """Yield for 24 runs with random routing whether they differ from DuckDB's answer, or fail."""
    for seed in range(8):
        case, rows = expected(rule.cases, seed)
        for batch_size in (1, 3, 100):
            options = Options(
                architecture="stems",
                policy="random",
                batch_size=batch_size,
                reoptimize_every=2,
                seed=seed,
                online=rule.online,
            )
            try:
                got = run(case, rule.plans, options, stream=rule.stream, chunk=3).rows
            except MillraceError:
                yield True
            else:
                yield got != rows


@pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: f"{rule.away.__name__}-{rule.cases.__name__}-{len(rule.plans)}"
)
def test_a_broken_rule_is_caught(rule: Rule, monkeypatch: Patch) -> None:
    """With the rule in place no answer is wrong, without it some are."""
    assert not any(wrong_answers(rule))
    rule.away(monkeypatch)
    assert any(wrong_answers(rule))


def test_a_relation_that_must_be_built_is_not_streamed() -> None:
    """BuildFirst, relaxed: only a relation whose one access module is a scan may stay unbuilt."""
    case = chain(1)
    for plans in (COMPETING, BOTH):
        with pytest.raises(MillraceError, match="must be built"):
            run(case, plans, schedule=Schedule(1, True, (0, 2, 1)))
    with pytest.raises(MillraceError, match="shares its tuples"):
        run(selves(1), {}, schedule=Schedule(0, True, (1, 0)))
