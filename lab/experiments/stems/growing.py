"""R.a = S.x while both grow: a SteM's index is a list at first and a hash table later.

Section 3.1: "the SteM may use a linked list when it holds a small number of tuples, and switch to a
hash-based implementation when the list size increases. This switch can be made independent of other
modules." An index for inequalities is ordered from the beginning (section 2.1.4: "hash table or binary
tree"): which kind it is follows from the predicate, and no size makes one of the other.

Costs are in comparisons of two codes. To make a table takes as long as 1,024 of them and to hash a tuple as
two, which is what millrace.engine.state.listed was measured by. What a call takes whatever it does is left
out: a probe of a list takes 6 µs more than one of a table, as long as making one: by the clock it gains
nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.run import Finished, all_batches, finish
from millrace.engine.expressions import Column, ColumnRef, Compare
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import JoinSpec
from millrace.engine.state import listed
from millrace.limits.clock import VirtualClock
from millrace.options import Options

SWITCHING, LIST, TABLE, FORGETFUL, UNORDERED = "switching", "list", "hash", "forgetful", "unordered"
_MAKE, _HASH = 1024, 2
_NEVER = 1 << 62


@dataclass
class Ledger:
    """What indexes cost in all, in comparisons; and how many rows one had when it became a table."""

    cost: int = 0
    switched: int = _NEVER


def counted(ledger: Ledger, *, forgetful: bool) -> type[listed.Index]:
    """Return the engine's index, which books what it does; a forgetful one loses its rows at the switch."""

    class Counted(listed.Index):
        def insert(self, codes: Any) -> None:
            super().insert(codes)
            ledger.cost += 0 if self.is_list else _HASH * len(codes)

        def probe(self, codes: Any, low: int = 0, high: Any = None) -> Any:
            held, was_list = self.rows, self.is_list
            walk = super().probe(codes, low, high)
            ledger.cost += _HASH * len(codes) if not self.is_list else held * len(codes)
            ledger.cost += _HASH * held if was_list and not self.is_list else 0
            return walk

        def _hashed(self, more: int = 0) -> Any:
            if self.is_list:
                ledger.cost += _MAKE
                ledger.switched = min(ledger.switched, self.rows + more)
                if forgetful:
                    self._list = self._list[:0]
            return super()._hashed(more)

    return Counted


def joined(spec: JoinSpec, data: dict[str, pa.Table], batch: int) -> Finished:
    """Run a block over SteMs, both tables in turn."""
    clock = VirtualClock()
    options = Options(architecture="stems", policy="fixed", batch_size=batch, online=True)
    return finish(EddyRun(spec, all_batches(data, batch), options, clock=clock), clock)


def ran(tuples: int, seed: int, kind: str) -> tuple[Ledger, int, tuple[Any, ...]]:
    """Join two tables of so many tuples; return the books, the rows, and what modules did."""
    draw = np.random.default_rng([seed, tuples])
    data = {name: pa.table({key: draw.integers(0, tuples, tuples)}) for name, key in (("R", "a"), ("S", "x"))}
    ledger = Ledger()
    with ExitStack() as stack:
        kinds = {LIST: _NEVER, TABLE: -1}
        for name in ("LISTED", "_WORTH") if kind in kinds else ():
            stack.enter_context(mock.patch.object(listed, name, kinds[kind]))
        index = counted(ledger, forgetful=kind == FORGETFUL)
        stack.enter_context(mock.patch("millrace.engine.state.base_tuples.Index", index))
        done = joined(block(data, "R.a = S.x"), data, 4)
    modules = tuple((m.name, m.action, m.tuples_in, m.tuples_out) for m in done.figures.modules)
    return ledger, done.rows, modules


def searched(tuples: int, seed: int, *, ordered: bool) -> float:
    """Return the pairs looked at for ``R.a < S.x``, which one in forty satisfies, over the matches."""
    draw = np.random.default_rng([seed, 1])
    r, s = pa.table({"a": draw.permutation(tuples)}), pa.table({"x": draw.permutation(tuples) // 20})
    data = {"R": r, "S": s}
    below = Compare("<", Column(ColumnRef("R", "a")), Column(ColumnRef("S", "x")), pa.int64())
    with ExitStack() as stack:
        if not ordered:
            stack.enter_context(mock.patch("millrace.engine.state.stem.SteM._searched", return_value=[]))
        done = joined(block(data, predicates=[below]), data, 256)
    looked = sum(m.tuples_out for m in done.figures.modules if m.action == "probe")
    return looked / done.rows


def run(settings: Settings) -> Outcome:
    """Join tables of more and more tuples with each kind of index."""
    sizes = [4 << step for step in range(20) if 4 << step <= settings["most"]]
    played = {SWITCHING: settings.ablated, LIST: LIST, TABLE: TABLE}
    found = {name: [ran(size, settings.seed, kind) for size in sizes] for name, kind in played.items()}
    costs = {name: [ledger.cost for ledger, _, _ in each] for name, each in found.items()}
    switches = [ledger.switched for ledger, _, _ in found[SWITCHING] if ledger.switched < _NEVER]
    apart = sum(
        abs(rows - mine) + (modules != of_mine)
        for each in found.values()
        for (_, rows, modules), (_, mine, of_mine) in zip(each, found[SWITCHING], strict=True)
    )
    mine, lists, tables = (np.array(each, float) for each in costs.values())
    # Each tuple of one side meets half of the other on the average: n²/2 comparisons, or a table of n.
    even = 1 + np.sqrt(1 + 2 * _MAKE)
    figures = {
        "small_over_list": mine[0] / lists[0],
        "large_over_table": mine[-1] / tables[-1],
        "worst_over_better": (mine / np.minimum(lists, tables)).max(),
        "switch_over_even": (switches[0] if switches else _NEVER) / even,
        "others_apart": apart,
        "looked_over_matches": searched(1000, settings.seed, ordered=settings.ablated != UNORDERED),
    }
    title, label = "What the indexes cost", "tuples of R and of S"
    return Outcome([Panel.over(title, label, "comparisons", sizes, costs, x_log=True, y_log=True)], figures)
