"""The runs of figures 12 and 13: figure 8's query with a table that begins to arrive late.

Avnur & Hellerstein 2000, section 4.4: R ⋈ S keeps 100 % of S and S ⋈ T 20 %, so S ⋈ T should come first, and
R is delayed by 10 seconds. (It is figure 8's 20 % version with the tables named the other way round.)
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.clock import VirtualClock
from millrace.experiments.eddies.three_tables import ORDERS, PARAMETERS, Version, spec_of, tables
from millrace.experiments.experiment import Parameter, Settings
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import finish, share_of
from millrace.experiments.lab.sources import Stream, batches, watched
from millrace.options import Options
from millrace.router.back_pressure import Backpressure
from millrace.runs.eddy_run import EddyRun

EDDY = "windowed_lottery"
VERSION = Version("R⋈S 100 %, S⋈T 20 %", 1.0, 0.2, "S⋈T first")
SAMPLES = 60
PARAMETERS_DELAYED = (
    *PARAMETERS,
    Parameter("delay", 10.0, 0.0, 1000.0, "s", "before the first tuple of R"),
    Parameter(
        "unit", 0.22e-3, 1e-6, 1.0, "s", "of a delay unit; then 43 % of S come during the paper's delay"
    ),
)


@dataclass(frozen=True)
class Moved:
    """A run, and how its tuples moved.

    Attributes:
        seconds: To completion.
        rows: Of the result.
        arrived: Tuples of S read when R began to arrive, as a share of S.
        read: Share of S read,
        r_first: and of the tuples so far the share that went to the join with R first.
    """

    seconds: float
    rows: int
    arrived: float
    read: tuple[float, ...]
    r_first: tuple[float, ...]

    def share_at(self, read: float) -> float:
        """Return the share that had gone to R first when so much of S had been read."""
        return self.r_first[min(range(len(self.read)), key=lambda i: abs(self.read[i] - read))]

    def share_between(self, low: float, high: float) -> float:
        """Return the share that went to R first of what was read between two shares of S."""
        went = self.share_at(high) * high - self.share_at(low) * low
        return min(1.0, max(0.0, went / (high - low)))


def run_delayed(name: str, settings: Settings, *, delayed: bool) -> Moved:
    """Run the query by a static order of ``ORDERS`` or a policy."""
    batch, unit = settings.whole("batch"), settings["unit"]
    data = tables(VERSION, settings["scale"], settings.seed)
    tuples = data["S"].num_rows
    spec = spec_of(data)
    costs = Costs()
    clock = VirtualClock(costs=costs)
    costs.declare(join_of(spec, "R", "S"), unit)
    costs.declare(join_of(spec, "S", "T"), unit)
    delay = settings["scale"] * settings["delay"] if delayed else 0.0
    samples: list[tuple[float, float, float]] = []

    def note(read: int) -> None:
        samples.append((clock.now(), read / tuples, share_of(eddy.figures(), "S", "R")))

    scans = {"S": watched(data["S"], batch, note, max(1, tuples // SAMPLES)), "T": batches(data["T"], batch)}
    options = Options(
        architecture="joins",
        policy="fixed" if name in ORDERS else name,
        order=ORDERS.get(name, ()),
        batch_size=batch,
        online=True,
    )
    eddy = EddyRun(
        spec,
        scans,
        options,
        clock=clock,
        access={"R": [Stream("R", data["R"], batch, clock, delay=delay)]},
        backpressure=Backpressure(settings.whole("queue"), settings.whole("buffer")),
    )
    done = finish(eddy, clock)
    samples.append((clock.now(), 1.0, done.share("S", "R")))
    times, read, shares = zip(*samples, strict=True)
    arrived = max((r for t, r in zip(times, read, strict=True) if t <= delay), default=0.0)
    return Moved(done.seconds, done.rows, arrived, read, shares)
