"""Figure 11: the costs of two index joins are toggled while the query runs."""

from __future__ import annotations

from collections.abc import Callable

from millrace.arrivals.access_modules import Index
from millrace.clock import VirtualClock
from millrace.experiments.eddies.two_indexes import eddy_of, spec_of, tables
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Parameter, Settings
from millrace.experiments.lab.costs import Costs, join_of
from millrace.experiments.lab.run import finish, share_of
from millrace.experiments.lab.sources import watched
from millrace.router.back_pressure import Backpressure

KNOWN = 0.1
SAMPLES = 60

LEARNED = 0.75
"""Least share to the cheap index in the first quarter; it starts even, and 1 is optimal."""

HALF = 0.1
"""How far from a half the share may be when each index has been the cheap one for as long."""

BENT = 0.1
"""How far the second quarter may be from a straight line."""

SWING = 0.05
"""Least change of the share over the third and the fourth quarter. If all tuples took the cheap index first
it would be 1/6: from 1/2 to 2/3 and back."""


def run(settings: Settings) -> Outcome:
    """Toggle the costs after each quarter of the table; ablated, queues never fill and tickets are even."""
    tuples = settings.whole("tuples")
    data = tables(tuples, KNOWN, settings.seed)
    spec = spec_of(data)
    costs = Costs()
    clock = VirtualClock(costs=costs)
    begun = 0

    def cost(*, first: bool) -> Callable[[], float]:
        def now() -> float:
            cheap = (4 * begun // tuples) % 2 == (0 if first else 1)
            return settings["cheap"] if cheap else settings["dear"]

        return now

    costs.declare(join_of(spec, "R", "A"), cost(first=True))
    costs.declare(join_of(spec, "R", "B"), cost(first=False))
    at: list[int] = []
    shares: list[float] = []

    def note(read: int) -> None:
        nonlocal begun
        begun = min(read, tuples - 1)
        if read and read % max(1, tuples // SAMPLES) == 0:
            at.append(read)
            shares.append(share_of(eddy.figures(), "R", "A"))
            settings.progress(read / tuples)

    indexes = {alias: Index(alias, data[alias].column_names, data[alias], clock) for alias in "AB"}
    limits = Backpressure(None if settings.ablated else settings.whole("queue"), settings.whole("buffer"))
    policy = "naive" if settings.ablated else "windowed_lottery"
    eddy = eddy_of(spec, watched(data["R"], 1, note), indexes, policy, clock, limits)
    finish(eddy, clock)

    def share(quarter: int) -> float:
        return shares[min(range(len(at)), key=lambda i: abs(at[i] - quarter * tuples / 4))]

    ends = [share(quarter) for quarter in range(1, 5)]
    second = [(n, s) for n, s in zip(at, shares, strict=True) if tuples / 4 <= n <= tuples / 2]
    line = [ends[0] + (ends[1] - ends[0]) * (n - tuples / 4) / (tuples / 4) for n, _ in second]
    bent = max(abs(s - straight) for (_, s), straight in zip(second, line, strict=True))
    told = ", ".join(f"{end:.0%}" for end in ends)
    checks = (
        Check(
            "while index 1 is cheap, most tuples go there first",
            ends[0] >= LEARNED,
            f"{ends[0]:.0%} of the first quarter",
        ),
        Check(
            "in the second quarter the share drifts to about a half, nearly in a straight line",
            abs(ends[1] - 0.5) <= HALF and bent <= BENT,
            f"to {ends[1]:.0%}, at most {bent:.3f} from a line",
        ),
        Check("in the third quarter it rises", ends[2] >= ends[1] + SWING, f"after each quarter: {told}"),
        Check(
            "in the fourth it falls, to about a half again",
            ends[3] <= ends[2] - SWING and abs(ends[3] - 0.5) <= HALF,
            f"after each quarter: {told}",
        ),
    )
    panel = Panel(
        "Costs toggle after each quarter",
        "tuples scanned",
        "share that went to index 1 first, so far",
        [Curve("eddy", at, shares)],
        marks=[(quarter * tuples / 4, "toggle") for quarter in (1, 2, 3)],
    )
    return Outcome(
        (panel,), {f"after_quarter_{i + 1}": end for i, end in enumerate(ends)} | {"bent": bent}, checks
    )


EXPERIMENT = Experiment(
    id="eddies-fig11",
    title="Costs that toggle",
    source="Avnur & Hellerstein 2000, section 4.4, figure 11",
    claim="An eddy follows costs that change: the share of tuples that go to index 1 first rises, drifts to "
    "a half almost linearly, rises and falls again, always favouring the cheaper index.",
    mechanism="queues never fill and the lottery's tickets are replaced by even shares",
    parameters=(
        Parameter("tuples", 4_000, 400, 1_000_000, "tuples", "in the scanned table"),
        Parameter("cheap", 1.0, 0.001, 1000.0, "delay units", "of a lookup in the cheap index"),
        Parameter("dear", 100.0, 0.001, 1000.0, "delay units", "of a lookup in the dear index"),
        Parameter("queue", 10, 1, 10_000, "tuples", "in a module's input queue when it is full"),
        Parameter("buffer", 50, 1, 100_000, "tuples", "in the eddy when it takes no more"),
    ),
    run=run,
)
