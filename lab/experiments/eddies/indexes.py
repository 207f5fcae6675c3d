"""Figures 10 and 11: a scanned table and two external indexes, ``R.x = A.x AND R.y = B.y``, that change.

Avnur & Hellerstein 2000, section 4.4. Both indexes know the same small share of R, at random. An index join
is like a selection on R: which one comes first decides how many tuples meet the other. The section ends with
selectivities that toggle instead of costs, and with what that can be worth at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lab.experiments.eddies.engine import WINDOWED, eddy
from lab.experiments.experiment import Curve, Outcome, Panel, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.costs import Cost, Costs, join_of
from lab.experiments.lab.indexes import RemoteIndex
from lab.experiments.lab.run import batches, finish, share_of, watched
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.arrivals.access_modules import Index, IndexAM
from millrace.engine.arrivals.schedule import Source
from millrace.engine.runs.eddy_run import EddyRun
from millrace.engine.spec import JoinSpec
from millrace.limits.clock import VirtualClock

ORDERS = {"A first": ("A", "B"), "B first": ("B", "A")}
"""Static orders: an eddy that keeps to one join first."""

PLANS = (*ORDERS, WINDOWED)
KNOWN = 0.1
SAMPLES = 60
STILL, UNTOGGLED = "no-queues-even-tickets", "untoggled"


@dataclass(frozen=True)
class Query:
    """A table and, for each of its columns, one with the values that an index knows."""

    data: Mapping[str, pa.Table]
    spec: JoinSpec
    rows: int

    def clock(self, a: Cost, b: Cost) -> VirtualClock:
        """Return a clock for one run, by the seconds that a tuple takes at the joins with A and with B."""
        return VirtualClock(costs=Costs({join_of(self.spec, "R", "A"): a, join_of(self.spec, "R", "B"): b}))

    def run(
        self,
        plan: str,
        settings: Settings,
        clock: VirtualClock,
        indexes: Mapping[str, IndexAM] | None = None,
        scan: Source | None = None,
    ) -> EddyRun:
        """Return an eddy by a static order of ``ORDERS`` or a policy.

        By default the indexes' time is the processor's, and R comes as it is taken.
        """
        local = {alias: Index(alias, [key], self.data[alias], clock) for alias, key in ("Ax", "By")}
        access: Access = {alias: [index] for alias, index in (indexes or local).items()}
        scan = scan or batches(self.data["R"], settings["batch"])
        return eddy(self.spec, {"R": scan}, settings, clock, ORDERS.get(plan, plan), access)


def query(x: np.ndarray, y: np.ndarray, known_x: np.ndarray, known_y: np.ndarray) -> Query:
    """Return the query over keys of R and of the indexes."""
    data = {"R": pa.table({"x": x, "y": y}), "A": pa.table({"x": known_x}), "B": pa.table({"y": known_y})}
    rows = int((np.isin(x, known_x) & np.isin(y, known_y)).sum())
    return Query(data, block(data, "R.x = A.x", "R.y = B.y"), rows)


def drawn(tuples: int, known: float, seed: int) -> Query:
    """Draw a query whose indexes know a share of the keys."""
    draw = np.random.default_rng(seed)
    x, y, known_x, known_y = (draw.permutation(tuples) for _ in range(4))
    few = round(known * tuples)
    return query(x, y, known_x[:few], known_y[:few])


def fig10(settings: Settings) -> Outcome:
    """Run both static orders and an eddy while a slow index and a fast one change places."""
    tuples, change = settings["tuples"], settings["change"]
    asked = drawn(tuples, settings["known"], settings.seed)
    each = change / (tuples * (1 - settings["left"]))

    def slow(*, early: bool) -> Callable[[float], float]:
        return lambda now: settings["slow"] if (now < change) == early else 0.0

    seconds: dict[str, float] = {}
    behind: dict[str, int] = {}
    for plan in PLANS:
        clock = asked.clock(each, each)
        indexes = {
            "A": RemoteIndex("x", asked.data["A"], clock, slow(early=False)),
            "B": RemoteIndex("y", asked.data["B"], clock, slow(early=True)),
        }
        run = asked.run(plan, settings, clock, indexes)
        seconds[plan] = finish(run, clock, asked.rows).seconds
        lookups = [lookup for index in indexes.values() for lookup in index.lookups]
        behind[plan] = sum(1 for began, took in lookups if took and began >= change)
    better = min(ORDERS, key=lambda plan: seconds[plan])
    figures = {
        "lead": seconds[better] / seconds[WINDOWED],
        "slow_lookups_left": behind[WINDOWED] / max(1, behind[better]),
    }
    panel = Panel.grouped(
        "Time to completion", "plan", "time (s)", seconds, {"seconds": list(seconds.values())}, y_log=True
    )
    return Outcome([panel], figures)


def fig11(settings: Settings) -> Outcome:
    """Toggle the costs after each quarter of the table, and follow the tuples."""
    tuples = settings["tuples"]
    asked = drawn(tuples, KNOWN, settings.seed)
    begun = 0

    def cost(*, first: bool) -> Callable[[], float]:
        return lambda: settings["cheap" if (4 * begun // tuples) % 2 == (0 if first else 1) else "dear"]

    clock = asked.clock(cost(first=True), cost(first=False))
    at, shares = [0.0], [0.5]

    def note(read: int) -> None:
        nonlocal begun
        begun = min(read, tuples - 1)
        if read:
            at.append(read / tuples)
            shares.append(share_of(run.figures(), "R", "A"))

    scan = watched(asked.data["R"], settings["batch"], note, max(1, tuples // SAMPLES))
    run = asked.run(WINDOWED, settings, clock, scan=scan)
    finish(run, clock, asked.rows)
    ends = [float(np.interp(quarter / 4, at, shares)) for quarter in range(1, 5)]
    fall = ends[0] - ends[1]
    inside = [(n, s) for n, s in zip(at, shares, strict=True) if 1 / 4 <= n <= 1 / 2]
    bent = max(abs(s - (ends[0] - fall * (n - 1 / 4) * 4)) for n, s in inside)
    figures = {f"after_quarter_{i + 1}": end for i, end in enumerate(ends)}
    figures |= {"fall": fall, "rise": ends[2] - ends[1], "second_fall": ends[2] - ends[3]}
    figures["bent"] = bent / fall if fall > 0.05 else 1.0
    panel = Panel(
        "Costs toggle after each quarter",
        "share of the table scanned",
        "share that went to index 1 first, so far",
        [Curve("eddy", at, shares)],
        marks=[(quarter / 4, "toggle") for quarter in (1, 2, 3)],
    )
    return Outcome([panel], figures)


def toggled(settings: Settings) -> Outcome:
    """Toggle selectivities: in each half of the table one index knows every key, and the other none.

    By the paper's arithmetic each static order does 3/2 of what the best order of each half does: one lookup
    for each tuple in one half, and two in the other.
    """
    tuples = settings["tuples"]
    draw = np.random.default_rng(settings.seed)
    x, y = draw.permutation(tuples), draw.permutation(tuples)
    half = tuples if settings.ablated == UNTOGGLED else tuples // 2
    asked = query(x, y, draw.permutation(x[half:]), draw.permutation(y[:half]))
    lookups: dict[str, float] = {}
    for plan in PLANS:
        clock = asked.clock(1.0, 1.0)
        run = asked.run(plan, settings, clock)
        lookups[plan] = finish(run, clock, asked.rows).seconds / tuples
    static = min(lookups[plan] for plan in ORDERS)
    figures = {
        "static_over_dynamic": static,
        "eddy_over_dynamic": lookups[WINDOWED],
        "gain": (static - lookups[WINDOWED]) / max(static - 1, 1e-9),
    }
    return Outcome([Panel.bars("Lookups for each tuple", "lookups", lookups)], figures)
