"""The query of figures 7 to 9, 12 and 13: ``SELECT * FROM R, S, T WHERE R.a = S.a AND S.b = T.b``.

Avnur & Hellerstein 2000, sections 4.3 and 4.4. Values are uniform. R has 10,000 tuples, S 80,000, T 10,000,
of 100 bytes each; columns that are not joined on are left out. R ⋈ S is a hash ripple join; S ⋈ T is one
too, or an index join. Tuples are read as fast as the eddy takes them, a batch of each table in turn, and one
processor serves both joins and nothing else. A hash ripple join takes one delay unit for each tuple routed
to it, to insert it and to probe; the paper's hash joins "all have the same cost". Which of both joins comes
first matters for tuples of S alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.arrivals.access_methods import Access
from millrace.arrivals.access_modules import Index
from millrace.clock import VirtualClock
from millrace.experiments.experiment import Parameter, Settings
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import finish
from millrace.experiments.lab.sources import batches
from millrace.expressions import ColumnRef
from millrace.options import Options
from millrace.router.back_pressure import Backpressure
from millrace.runs.eddy_run import EddyRun
from millrace.spec import Equality, JoinSpec, RelationSpec

SCALE = Parameter("scale", 1.0, 0.02, 10.0, "", "of all tables: R and T 10,000 tuples, S 80,000")
BATCH = Parameter("batch", 100, 1, 1_000, "tuples", "that are routed together; the paper's is 1")
QUEUE = Parameter("queue", 200, 1, 100_000, "tuples", "in a module's input queue when it is full")
BUFFER = Parameter("buffer", 600, 1, 100_000, "tuples", "in the eddy when it takes no more")
INDEX = Parameter("index", 3.0, 0.1, 1000.0, "delay units", "of a lookup, of which random reads cost more")
PARAMETERS = (SCALE, BATCH, QUEUE, BUFFER)

RANGE = (500, 5500)
"""Values of R.a (table 1); those of S.a are 0 to 5000, so that a tuple of S meets 1.8 of R on the average."""

ORDERS = {"R⋈S first": ("R", "T"), "S⋈T first": ("T", "R")}
"""Static orders: an eddy that keeps to one join first. Tuples of S go to R, or to T."""


@dataclass(frozen=True)
class Version:
    """One version of the query.

    Attributes:
        name: For the legend.
        r_matches: Tuples of R that one of S meets: 1.8 as in table 1, or fewer where R.a and S.a are drawn
            from as many more values.
        t_matches: Tuples of T that one of S meets; at most 1.
        best: The better order.
        index: Delay units of a lookup where S ⋈ T is an index join; None for a hash ripple join.
    """

    name: str
    r_matches: float
    t_matches: float
    best: str
    index: float | None = None


@dataclass(frozen=True)
class Done:
    """Delay units for each tuple of S, the share of S that met R first, and the rows of the result."""

    cost: float
    r_first: float
    rows: int


def tables(version: Version, scale: float, seed: int) -> dict[str, pa.Table]:
    """Draw the tables."""
    draw = np.random.default_rng(seed)
    sizes = {
        name: max(1, round(scale * rows)) for name, rows in (("R", 10_000), ("S", 80_000), ("T", 10_000))
    }
    if version.r_matches == 1.8:
        low, high = (round(scale * bound) for bound in RANGE)
        r, s = draw.integers(low, high, sizes["R"]), draw.integers(0, high - low, sizes["S"])
    else:
        values = round(sizes["R"] / version.r_matches)
        r, s = draw.integers(0, values, sizes["R"]), draw.integers(0, values, sizes["S"])
    values = round(sizes["T"] / version.t_matches)
    return {
        "R": pa.table({"a": r}),
        "S": pa.table({"a": s, "b": draw.integers(0, values, sizes["S"])}),
        "T": pa.table({"b": draw.permutation(sizes["T"])}),
    }


def spec_of(data: dict[str, pa.Table]) -> JoinSpec:
    """Return the block; it counts its rows."""
    int64 = pa.int64()
    return JoinSpec(
        tuple(RelationSpec(name, table.schema, rows=table.num_rows) for name, table in data.items()),
        (
            Equality(ColumnRef("R", "a"), ColumnRef("S", "a"), int64),
            Equality(ColumnRef("S", "b"), ColumnRef("T", "b"), int64),
        ),
        count_only=True,
    )


def run_version(version: Version, name: str, settings: Settings, policy: str | None = None) -> Done:
    """Run one version of the query.

    Args:
        version: Which.
        name: A static order of ``ORDERS``, or a policy.
        settings: Sizes and seed.
        policy: Instead of the one that the name says.
    """
    batch = settings.whole("batch")
    data = tables(version, settings["scale"], settings.seed)
    spec = spec_of(data)
    costs = Costs()
    clock = VirtualClock(costs=costs)
    costs.declare(join_of(spec, "R", "S"), 1.0)
    costs.declare(join_of(spec, "S", "T"), 1.0 if version.index is None else version.index)
    sources = {name: batches(table, batch) for name, table in data.items()}
    access: Access = {}
    if version.index is not None:
        del sources["T"]
        access = {"T": [Index("T by b", ("b",), data["T"], clock)]}
    options = Options(
        architecture="joins",
        policy="fixed" if name in ORDERS else policy or name,
        order=ORDERS.get(name, ()),
        batch_size=batch,
        online=True,
    )
    limits = Backpressure(settings.whole("queue"), settings.whole("buffer"))
    done = finish(EddyRun(spec, sources, options, clock=clock, access=access, backpressure=limits), clock)
    return Done(done.seconds / data["S"].num_rows, done.share("S", "R"), done.rows)
