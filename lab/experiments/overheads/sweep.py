"""An eddy against one static plan, for reoptimization every 1, 10, 100 and 1000 tuples.

Deshpande 2004 routes single tuples and renews decisions every X of them. Millrace routes batches: to renew
decisions every X tuples for small X, its batches have X tuples, and so have those of the static plan beside
it. Where batches are larger than X, decisions are renewed with every batch.

Rounds take the sides in turning order (:mod:`lab.benchmarks.harness`). What other programs do meanwhile
shows in wall time much more than in processor time, so that the latter is compared.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import process_time

import pyarrow as pa

from lab.benchmarks.harness import turned
from lab.experiments.experiment import Outcome, Panel, Settings
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.runs.run_of import run_of
from millrace.engine.spec import JoinSpec
from millrace.errors import ExecutionError
from millrace.options import Options

_LEAST = 0.03
"""Seconds that one measurement takes at least: a short run is repeated within it."""

_MOST = 20
"""Repetitions within a measurement, at most."""


def medians(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of a run by side, each warmed up once, of so many measurements of each."""
    repeats = {name: _repeats(run) for name, run in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in turned(list(sides), number):
            gc.collect()
            began = process_time()
            for _ in range(repeats[name]):
                sides[name]()
            seconds[name].append((process_time() - began) / repeats[name])
    return {name: statistics.median(found) for name, found in seconds.items()}


def _repeats(run: Callable[[], object]) -> int:
    """Return how often to run a side within a measurement, from a second look at it."""
    run()
    began = process_time()
    run()
    return max(1, min(_MOST, round(_LEAST / max(process_time() - began, 1e-9))))


EVERY = (1, 10, 100, 1000)
"""X: tuples after which routing decisions are renewed."""

LARGE, SMALLER = 1000, 100
"""Tuples of large batches; and the X for which decisions are renewed within them, or with every one."""

_BATCHES = 20
_FEWEST = 50
"""Small batches take long, so that with them a run takes fewer tuples: so many batches, or so many tuples."""


@dataclass(frozen=True)
class Query:
    """A query of the paper's figure 4. Each tuple of its first table becomes one result.

    Tables that are asked by index are not among ``tables``; ``access`` returns the indexes, made anew for
    each run. Architecture and policy, None for the default, are the eddy's.
    """

    name: str
    spec: JoinSpec
    tables: Mapping[str, pa.Table]
    architecture: str
    policy: str | None = None
    access: Callable[[], Access] = dict

    def side(self, every: int, batch: int, tuples: int, *, static: bool = False) -> Callable[[], None]:
        """Return what runs it over so many first tuples of each table, and checks the number of rows.

        Batches have ``batch`` tuples, and decisions are renewed after ``every`` tuples.
        """
        options = Options(
            architecture="static" if static else self.architecture,
            policy=None if static else self.policy,
            batch_size=batch,
            reoptimize_every=every,
            online=len(self.spec.relations) > 1,  # symmetric hash joins
        )
        cut = {a: table.slice(0, tuples).combine_chunks().to_batches() for a, table in self.tables.items()}

        def run() -> None:
            sources = {alias: iter(batches) for alias, batches in cut.items()}
            results = run_of(self.spec, sources, options, access=self.access()).run()
            count = self.spec.count_only
            found = sum(batch.column(0)[0].as_py() if count else batch.num_rows for batch in results)
            if found != tuples:
                raise ExecutionError(f"{self.name} found {found} rows, expected {tuples}")

        return run


@dataclass(frozen=True)
class Swept:
    """Seconds of processor time per tuple of the first table of a query.

    Attributes:
        static: The static plan's with batches of X tuples, by X.
        eddy: The eddy's with batches of X tuples and decisions every X.
        batched: The eddy's with large batches and decisions every ``SMALLER`` tuples.
        again: The static plan's with large batches a second time, the A/A control.
    """

    static: Mapping[int, float]
    eddy: Mapping[int, float]
    batched: float
    again: float

    @property
    def base(self) -> float:
        """Seconds of the static plan with large batches; both of its sides count, being the same thing."""
        return (self.static[LARGE] + self.again) / 2

    @property
    def over_best(self) -> float:
        """The eddy's time with large batches over that of the static plan with its best ones."""
        return self.eddy[LARGE] / min(self.base, *self.static.values())

    def ratio(self, every: int) -> float:
        """Return the eddy's time over the static plan's with batches of the same size."""
        return self.eddy[every] / (self.base if every == LARGE else self.static[every])


def sweep(query: Query, settings: Settings) -> Swept:
    """Measure a query; ablated, the eddy decides for every tuple of its own, whatever X is."""
    tuples = len(next(iter(query.tables.values())))
    sizes = {x: tuples if x == LARGE else min(tuples, max(_FEWEST, _BATCHES * x)) for x in EVERY}
    static = {"again": (LARGE, LARGE, tuples)} | {f"static {x}": (x, x, size) for x, size in sizes.items()}
    routed = {"batched": (SMALLER, LARGE, tuples)} | {f"eddy {x}": (x, x, size) for x, size in sizes.items()}
    if settings.ablated:
        routed = dict.fromkeys(routed, (1, 1, min(tuples, _FEWEST)))
    sides = {name: query.side(*given, static=name in static) for name, given in {**static, **routed}.items()}
    found = medians(sides, settings["rounds"])
    seconds = {name: found[name] / max(1, size) for name, (_, _, size) in {**static, **routed}.items()}
    fixed, eddy = ({x: seconds[f"{side} {x}"] for x in EVERY} for side in ("static", "eddy"))
    return Swept(fixed, eddy, seconds["batched"], seconds["again"])


def outcome(swept: Mapping[str, Swept], shown: str) -> Outcome:
    """Return what a figure shows of some queries, by name, and the times of one of them."""
    figures: dict[str, float] = {}
    for name, each in swept.items():
        figures |= {f"{name}_ratio_{x}": each.ratio(x) for x in EVERY}
        figures[f"{name}_batched_ratio_{SMALLER}"] = each.batched / each.base
        figures[f"{name}_aa_ratio"] = each.static[LARGE] / each.again
        figures[f"{name}_vs_best_static"] = each.over_best
    figures["worst_vs_best_static"] = max(each.over_best for each in swept.values())
    figures["worst_ratio"] = max(each.ratio(LARGE) for each in swept.values())
    figures["least_single_ratio"] = min(each.ratio(1) for each in swept.values())
    panel = partial(Panel.over, x_label="X: tuples between decisions", x_log=True)
    ratio, time = "eddy / static plan (processor time)", "processor time (µs per tuple)"
    of, large = "batches of X tuples, decisions every X", "batches of 1,000 tuples, decisions every X"
    ratios = {name: [each.ratio(x) for x in EVERY] for name, each in swept.items()}
    batched = {name: [each.batched / each.base, each.eddy[LARGE] / each.base] for name, each in swept.items()}
    sides = {"static plan": swept[shown].static, "eddy": swept[shown].eddy}
    micros = {name: [1e6 * side[x] for x in EVERY] for name, side in sides.items()}
    panels = [
        panel(of, y_label=ratio, x=EVERY, curves=ratios),
        panel(large, y_label=ratio, x=(SMALLER, LARGE), curves=batched),
        panel(f"{shown}: {of}", y_label=time, x=EVERY, curves=micros, y_log=True),
    ]
    return Outcome(panels, figures)
