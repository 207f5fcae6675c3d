"""Every rule that keeps answers correct is needed: without it, some answer is wrong.

Each test takes one rule away and lets random routing search a fixed set of small blocks for a wrong
answer. It must find one, and must find none with the rule in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.arrivals.schedule import Schedule
from millrace.engine.relations import codes, keys
from millrace.engine.router import routing_table as routing
from millrace.engine.router.legality import Legality
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.state import matching, stem as admission
from millrace.engine.state.stem import SteM
from millrace.engine.state.waiting import Waiting
from millrace.engine.tuples import TupleBatch
from millrace.options import Options
from tests.engine.eddy.blocks import Rows, block, chain, run
from tests.engine.eddy.oracle import Case

Patch = pytest.MonkeyPatch
INTERLEAVED = Schedule(None, True, (0, 1, 2))
STREAMED = Schedule(1, True, (1, 0, 2))


def forget_stamps(patch: Patch) -> None:
    """TimeStamp: a match goes to both of its components, not only to the later one."""
    start = SteM.start
    patch.setattr(SteM, "start", lambda self, batch: start(self, replace(batch, stamps=None)))


def forget_last_match(patch: Patch) -> None:
    """LastMatchTimeStamp: a tuple that probes again meets the rows it has met already."""
    start = SteM.start
    patch.setattr(SteM, "start", lambda self, batch: start(self, replace(batch, seen=0)))


def forget_prior(patch: Patch) -> None:
    """ProbeCompletion: a bounced tuple may go to another SteM."""
    legal = Legality.of
    patch.setattr(Legality, "of", lambda self, signature: legal(self, replace(signature, prior=None)))


def never_hold(patch: Patch) -> None:
    """SteM BounceBack: a tuple leaves although matches may still come."""
    patch.setattr(Waiting, "hold", lambda *_: None)


def build_last(patch: Patch) -> None:
    """BuildFirst: a tuple probes first and is built only after all that arrived with it has probed."""
    build, admit = SteM.build, EddyRun._admit
    late: list[tuple[SteM, TupleBatch, int]] = []

    def bounce(self: SteM, batch: TupleBatch, stamp: int) -> TupleBatch:
        late.append((self, batch, stamp))
        stamps = np.arange(stamp, stamp + batch.size)
        return replace(batch, signature=replace(batch.signature, built=True), stamps=stamps)

    def admit_later(self: EddyRun, arrivals: Any) -> None:
        while late:
            module, batch, stamp = late.pop(0)
            build(module, batch, stamp)
        admit(self, arrivals)

    patch.setattr(SteM, "build", bounce)
    patch.setattr(EddyRun, "_admit", admit_later)


def trust_hashes(patch: Patch) -> None:
    """Verification: equal hashes are taken for equal keys."""
    patch.setattr(SteM, "_verified", lambda *given: np.ones(len(given[-1]), np.bool_))


def keep_duplicates(patch: Patch) -> None:
    """Set semantics: a duplicate is built like any other tuple."""
    patch.setattr(SteM, "_fresh", lambda _, chunk, *__: np.arange(chunk.num_rows))


def forget_built(patch: Patch) -> None:
    """Set semantics, half of it: only duplicates within one batch are found."""
    fresh = SteM._fresh

    def within(self: SteM, chunk: pa.RecordBatch, coded: Any) -> Any:
        return fresh(SteM(self.number, self._spec, self._graph), chunk, coded)

    patch.setattr(SteM, "_fresh", within)


def admit_nulls(patch: Patch) -> None:
    """Null keys never match: without it, they have some code like all others."""

    def careless(batch: pa.RecordBatch, columns: Any, same: Any) -> Any:
        return batch, [codes(batch.column(key.name), key.type)[0] for key in columns]

    patch.setattr(admission, "keyed", careless)


def admit_unequal(patch: Patch) -> None:
    """Two columns of one relation in one attribute class must be equal in its every row."""
    keyed = admission.keyed
    patch.setattr(admission, "keyed", lambda batch, columns, *_: keyed(batch, columns))


def round_shares_down(patch: Patch) -> None:
    """A split gives all tuples away: what rounding leaves over goes to the last operator."""

    def careless(entry: Any, size: int) -> list[int]:
        return np.cumsum([int(share * size) for _, share in entry.shares]).tolist()

    patch.setattr(routing, "_bounds", careless)


def weak_hashes(patch: Patch) -> None:
    """Make hashes of one bit, so that a handful of keys collides."""

    def one_bit(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
        return ((np.diff(offsets) + data[offsets[1:] - 1]) % 2).astype(np.int64)

    patch.setattr(keys, "hash_bytes", one_bit)
    patch.setattr(matching, "combine", lambda left, right: (left ^ right) & 1)


def sets(seed: int) -> Case:
    tables = chain(seed).tables
    tables = {"a": tables["a"], "b": tables["b"].select(["k", "j"]), "c": tables["c"]}
    return block(tables, ["a.k = b.k", "b.j = c.j"], distinct=["b"])


def pairs(seed: int) -> Case:
    tables = {alias: chain(seed + i).tables["b"] for i, alias in enumerate("abc")}
    return block(tables, ["a.k = b.k", "a.j = b.j", "c.k = b.k", "c.j = b.j"])


def texts(seed: int) -> Case:
    return chain(seed, pa.string())


def gaps(seed: int) -> Case:
    return chain(seed, nulls=0.3)


def tied(seed: int) -> Case:
    return block(chain(seed).tables, ["a.k = b.k", "a.k = b.j", "b.j = c.j"])


@dataclass(frozen=True)
class Rule:
    away: Callable[[Patch], None]
    schedule: Schedule = INTERLEAVED
    cases: Callable[[int], Case] = chain
    before: Callable[[Patch], None] | None = None


RULES = [
    Rule(forget_stamps),
    Rule(forget_last_match, STREAMED),
    Rule(forget_prior, STREAMED),
    Rule(never_hold, STREAMED),
    Rule(build_last),
    Rule(trust_hashes, cases=texts, before=weak_hashes),
    Rule(trust_hashes, cases=pairs, before=weak_hashes),
    Rule(keep_duplicates, cases=sets),
    Rule(forget_built, cases=sets),
    Rule(admit_nulls, cases=gaps),
    Rule(admit_unequal, cases=tied),
    Rule(round_shares_down),
    Rule(round_shares_down, STREAMED),
]


@lru_cache
def expected(cases: Callable[[int], Case], seed: int) -> tuple[Case, Rows]:
    case = cases(seed)
    return case, case.expected()


def wrong_answers(rule: Rule) -> int:
    """Return how many of 24 runs with random routing differ from DuckDB's answer."""
    wrong = 0
    for seed in range(8):
        case, rows = expected(rule.cases, seed)
        for batch_size in (1, 3, 100):
            options = Options(
                architecture="stems", policy="random", batch_size=batch_size, reoptimize_every=2, seed=seed
            )
            wrong += run(case, options, schedule=rule.schedule, chunk=3)[0] != rows
    return wrong


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.away.__name__}-{rule.cases.__name__}")
def test_a_broken_rule_is_caught(rule: Rule, monkeypatch: Patch) -> None:
    """With the rule in place no answer is wrong, without it some are."""
    if rule.before is not None:
        rule.before(monkeypatch)
    assert wrong_answers(rule) == 0
    rule.away(monkeypatch)
    assert wrong_answers(rule) > 0
