"""Figures 10 and 11: a scanned table and two external indexes, ``R.x = A.x AND R.y = B.y``, that change.

Avnur & Hellerstein 2000, section 4.4. Both indexes know the same small share of R, at random. An index join
is like a selection on R: which one comes first decides how many tuples meet the other. The section ends with
selectivities that toggle instead of costs, and with what that can be worth at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrivals.access_modules import Index, IndexAM
from millrace.clock import Clock, VirtualClock
from millrace.experiments.eddies.engine import WINDOWED, eddy, finished
from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import Finished, key, share_of
from millrace.experiments.lab.sources import batches, watched
from millrace.runs.eddy_run import EddyRun
from millrace.spec import JoinSpec

ORDERS = {"A first": ("A", "B"), "B first": ("B", "A")}
"""Static orders: an eddy that keeps to one join first."""

KNOWN = 0.1
SAMPLES = 60
STILL, UNTOGGLED = "no-queues-even-tickets", "untoggled"


class RemoteIndex(Index):
    """An index that answers one lookup after the other and leaves the processor free; its delay changes.

    Args:
        name: For reports and errors.
        table: What is looked up, by its only column.
        clock: What delays are measured by.
        delay: Seconds of a lookup that begins at the time given.

    Attributes:
        lookups: When each lookup began, and how long it took, in seconds.
    """

    def __init__(self, name: str, table: pa.Table, clock: Clock, delay: Callable[[float], float]) -> None:
        super().__init__(name, table.column_names, table, clock, in_flight=1)
        self.lookups: list[tuple[float, float]] = []
        self._at = delay

    def submit(self, bindings: pa.RecordBatch) -> None:
        """Begin lookups as soon as earlier ones have ended."""
        for row in range(bindings.num_rows):
            began = max(self._free, self._clock.now())
            self._delay = self._at(began)
            self.lookups.append((began, self._delay))
            super().submit(bindings.slice(row, 1))


@dataclass(frozen=True)
class Query:
    """A table and, for each of its columns, one with the values that an index knows."""

    data: Mapping[str, pa.Table]
    spec: JoinSpec
    rows: int


def query(x: np.ndarray, y: np.ndarray, known_x: np.ndarray, known_y: np.ndarray) -> Query:
    """Return the query over keys of R and of the indexes."""
    data = {"R": pa.table({"x": x, "y": y}), "A": pa.table({"x": known_x}), "B": pa.table({"y": known_y})}
    rows = int((np.isin(x, known_x) & np.isin(y, known_y)).sum())
    return Query(data, block(data, "R.x = A.x", "R.y = B.y"), rows)


def drawn(tuples: int, known: float, seed: int) -> Query:
    """Draw a query whose indexes know a share of the keys."""
    draw = np.random.default_rng(seed)
    columns = [draw.permutation(tuples) for _ in range(4)]
    few = round(known * tuples)
    return query(columns[0], columns[1], columns[2][:few], columns[3][:few])


def run_query(
    asked: Query,
    scan: Iterable[pa.RecordBatch],
    indexes: Mapping[str, IndexAM],
    plan: str,
    clock: VirtualClock,
    settings: Settings,
    batch: int | None = None,
) -> EddyRun:
    """Return an eddy of two index joins that routes by a static order of ``ORDERS`` or a policy."""
    access = {alias: [index] for alias, index in indexes.items()}
    return eddy(asked.spec, {"R": scan}, settings, clock, ORDERS.get(plan, plan), access, batch=batch)


def fig10(settings: Settings) -> Outcome:
    """Run both static orders and an eddy while a slow index and a fast one change places."""
    change, slow, batch = settings["change"], settings["slow"], settings.whole("batch")
    asked = drawn(settings.whole("tuples"), settings["known"], settings.seed)
    each = change / (settings.whole("tuples") * (1 - settings["left"]))
    done: dict[str, Finished] = {}
    behind: dict[str, int] = {}
    for i, plan in enumerate((*ORDERS, WINDOWED)):
        costs = Costs()
        clock = VirtualClock(costs=costs)
        for alias in "AB":
            costs.declare(join_of(asked.spec, "R", alias), each)

        def delay(*, early: bool) -> Callable[[float], float]:
            return lambda now: slow if (now < change) == early else 0.0

        indexes = {
            alias: RemoteIndex(alias, asked.data[alias], clock, delay(early=alias == "B")) for alias in "AB"
        }
        run = run_query(asked, batches(asked.data["R"], batch), indexes, plan, clock, settings)
        done[plan] = finished(run, clock, asked.rows)
        behind[plan] = sum(
            1 for index in indexes.values() for began, took in index.lookups if took and began >= change
        )
        settings.progress((i + 1) / 3)
    seconds = {plan: each.seconds for plan, each in done.items()}
    better = min(ORDERS, key=lambda plan: seconds[plan])
    figures = {key(plan, "seconds"): value for plan, value in seconds.items()}
    figures |= {key(plan, "slow lookups"): float(count) for plan, count in behind.items()}
    figures["lead"] = seconds[better] / seconds[WINDOWED]
    figures["slow_lookups_left"] = behind[WINDOWED] / max(1, behind[better])
    curve = Curve("seconds", range(3), list(seconds.values()))
    panel = Panel(
        "Time to completion", "plan", "time (s)", [curve], "bars", y_log=True, x_names=tuple(seconds)
    )
    return Outcome((panel,), figures)


def fig11(settings: Settings) -> Outcome:
    """Toggle the costs after each quarter of the table, and follow the tuples."""
    tuples, batch = settings.whole("tuples"), settings.whole("batch")
    asked = drawn(tuples, KNOWN, settings.seed)
    costs = Costs()
    clock = VirtualClock(costs=costs)
    begun = 0

    def cost(*, first: bool) -> Callable[[], float]:
        return lambda: settings["cheap" if (4 * begun // tuples) % 2 == (0 if first else 1) else "dear"]

    costs.declare(join_of(asked.spec, "R", "A"), cost(first=True))
    costs.declare(join_of(asked.spec, "R", "B"), cost(first=False))
    at, shares = [0.0], [0.5]

    def note(read: int) -> None:
        nonlocal begun
        begun = min(read, tuples - 1)
        if read:
            at.append(read / tuples)
            shares.append(share_of(run.figures(), "R", "A"))
            settings.progress(read / tuples)

    indexes = {a: Index(a, asked.data[a].column_names, asked.data[a], clock) for a in "AB"}
    scan = watched(asked.data["R"], batch, note, max(1, tuples // SAMPLES))
    run = run_query(asked, scan, indexes, WINDOWED, clock, settings)
    finished(run, clock, asked.rows)
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
    return Outcome((panel,), figures)


def toggled(settings: Settings) -> Outcome:
    """Toggle selectivities: in each half of the table one index knows every key, and the other none.

    By the paper's arithmetic each static order does 3/2 of what the best order of each half does: one lookup
    for each tuple in one half, and two in the other.
    """
    tuples, batch = settings.whole("tuples"), settings.whole("batch")
    draw = np.random.default_rng(settings.seed)
    x, y = draw.permutation(tuples), draw.permutation(tuples)
    half = tuples if settings.ablated == UNTOGGLED else tuples // 2
    asked = query(x, y, draw.permutation(x[half:]), draw.permutation(y[:half]))
    lookups: dict[str, float] = {}
    for i, plan in enumerate((*ORDERS, WINDOWED)):
        costs = Costs()
        clock = VirtualClock(costs=costs)
        for alias in "AB":
            costs.declare(join_of(asked.spec, "R", alias), 1.0)
        indexes = {a: Index(a, asked.data[a].column_names, asked.data[a], clock) for a in "AB"}
        run = run_query(asked, batches(asked.data["R"], batch), indexes, plan, clock, settings)
        lookups[plan] = finished(run, clock, asked.rows).seconds / tuples
        settings.progress((i + 1) / 3)
    static = min(lookups[plan] for plan in ORDERS)
    figures = {"static_over_dynamic": static, "eddy_over_dynamic": lookups[WINDOWED]}
    figures["gain"] = (static - lookups[WINDOWED]) / max(static - 1, 1e-9)
    return Outcome((Panel.bars("Lookups for each tuple", "lookups", lookups),), figures)
