"""An eddy against one static plan, for reoptimization every 1, 10, 100 and 1000 tuples.

Deshpande 2004 routes single tuples and renews decisions every X of them. Millrace routes batches: to renew
decisions every X tuples for small X, its batches have X tuples, and so have those of the static plan beside
it. Where batches are larger than X, decisions are renewed with every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from millrace.arrivals.access_methods import Access
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Outcome, Panel, Settings
from millrace.experiments.overheads.measure import medians
from millrace.options import Options
from millrace.runs.run_of import run_of
from millrace.spec import JoinSpec

EVERY = (1, 10, 100, 1000)
"""X: tuples after which routing decisions are renewed."""

LARGE = EVERY[-1]
_BATCHES = 20
_FEWEST = 50
"""Small batches take long, so that with them a run takes fewer tuples: so many batches, or so many tuples."""

BATCHED = (100, 1000)
"""X where batches have 1000 tuples: for smaller ones decisions are renewed with every batch all the same."""


@dataclass(frozen=True)
class Query:
    """A query of the paper's figure 4. Each tuple of its first table becomes one result.

    Attributes:
        name: As in the paper.
        spec: The block.
        tables: By alias; those that are asked by index are not among them.
        architecture: Of the eddy.
        policy: Of the eddy; None for the default.
        access: Returns access modules, made anew for each run.
    """

    name: str
    spec: JoinSpec
    tables: Mapping[str, pa.Table]
    architecture: str
    policy: str | None = None
    access: Callable[[], Access] = dict

    def side(self, every: int, batch: int, tuples: int, *, static: bool = False) -> Callable[[], None]:
        """Return what runs it over the first tuples of each table, checking the number of rows.

        Args:
            every: Tuples after which decisions are renewed.
            batch: Tuples of a batch.
            tuples: Of each table.
            static: By the static plan.
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
        batched: The eddy's with batches of 1000 tuples and decisions every X.
        again: The static plan's with batches of 1000 tuples a second time, the A/A control.
    """

    static: Mapping[int, float]
    eddy: Mapping[int, float]
    batched: Mapping[int, float]
    again: float

    @property
    def base(self) -> float:
        """Seconds of the static plan with large batches; both of its sides count, being the same thing."""
        return (self.static[LARGE] + self.again) / 2

    def ratio(self, every: int) -> float:
        """Return the eddy's time over the static plan's with batches of the same size."""
        return self.eddy[every] / (self.base if every == LARGE else self.static[every])


def sweep(query: Query, settings: Settings) -> Swept:
    """Measure a query; ablated, the eddy decides for every tuple of its own, whatever X is."""
    tuples = len(next(iter(query.tables.values())))
    sizes = {"again": tuples}
    sides = {"again": query.side(LARGE, LARGE, tuples, static=True)}
    for x in EVERY:
        size = tuples if x == LARGE else min(tuples, max(_FEWEST, _BATCHES * x))
        sides[f"static {x}"] = query.side(x, x, size, static=True)
        sizes[f"static {x}"] = size
        routed = {"eddy": (x, x, size)}
        if x in BATCHED and x != LARGE:
            routed["batched"] = (x, LARGE, tuples)
        for name, given in routed.items():
            every, batch, taken = (1, 1, min(tuples, _FEWEST)) if settings.ablated else given
            sides[f"{name} {x}"] = query.side(every, batch, taken)
            sizes[f"{name} {x}"] = taken
    found = medians(sides, settings["rounds"])
    seconds = {name: found[name] / max(1, size) for name, size in sizes.items()}
    return Swept(
        {x: seconds[f"static {x}"] for x in EVERY},
        {x: seconds[f"eddy {x}"] for x in EVERY},
        {x: seconds[f"{'eddy' if x == LARGE else 'batched'} {x}"] for x in BATCHED},
        seconds["again"],
    )


def outcome(swept: Mapping[str, Swept], shown: str) -> Outcome:
    """Return what a figure shows; the eddy's large batches are compared with the static plan's best ones.

    Args:
        swept: By query.
        shown: The query whose times are shown.
    """
    found: dict[str, float] = {}
    for name, each in swept.items():
        found |= {f"{name}_ratio_{x}": each.ratio(x) for x in EVERY}
        found |= {f"{name}_batched_ratio_{x}": each.batched[x] / each.base for x in BATCHED if x != LARGE}
        found[f"{name}_aa_ratio"] = each.static[LARGE] / each.again
    best = {name: each.eddy[LARGE] / min(each.base, *each.static.values()) for name, each in swept.items()}
    found |= {f"{name}_vs_best_static": ratio for name, ratio in best.items()}
    found["worst_vs_best_static"] = max(best.values())
    found["worst_ratio"] = max(each.ratio(LARGE) for each in swept.values())
    found["least_single_ratio"] = min(each.ratio(1) for each in swept.values())
    panel = partial(Panel.over, x_label="X: tuples between decisions", x_log=True)
    ratio, time = "eddy / static plan (processor time)", "processor time (µs per tuple)"
    of = "batches of X tuples, decisions every X"
    ratios = {name: [each.ratio(x) for x in EVERY] for name, each in swept.items()}
    batched = {name: [each.batched[x] / each.base for x in BATCHED] for name, each in swept.items()}
    sides = {"static plan": swept[shown].static, "eddy": swept[shown].eddy}
    micros = {name: [1e6 * side[x] for x in EVERY] for name, side in sides.items()}
    panels = [
        panel(of, y_label=ratio, x=EVERY, curves=ratios),
        panel("batches of 1,000 tuples, decisions every X", y_label=ratio, x=BATCHED, curves=batched),
        panel(f"{shown}: {of}", y_label=time, x=EVERY, curves=micros, y_log=True),
    ]
    return Outcome(panels, found)
