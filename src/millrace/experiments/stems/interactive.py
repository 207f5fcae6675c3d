"""R.key = T.key, where T has an index and a scan, and the user wants to see some tuples of R first.

The paper's policy routes for the most benefit per second; tuples that the user prefers are bounced to the
index even though the scan would find them, ahead of all others (section 4.1, SteM BounceBack).
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Parameter, Settings
from millrace.experiments.stems.watched import (
    INT,
    Modules,
    Watched,
    WatchedIndex,
    block_of,
    scan,
    table_r,
    table_t,
    watch,
)
from millrace.expressions import Column, ColumnRef, Compare, Literal
from millrace.options import Options


def run(settings: Settings) -> Outcome:
    """Run the join with the preference and without."""
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    wanted = round(settings["preferred"] * tuples)
    tables = {"R": table_r(draw, tuples, 1), "T": table_t(draw, tuples)}
    spec = block_of(tables, "R.key = T.key")

    def side(begin: float, *, preferring: bool) -> tuple[Watched, int]:
        made: list[WatchedIndex] = []

        def access(clock: VirtualClock) -> Modules:
            made.append(WatchedIndex("T.key", ["key"], tables["T"], clock, settings["lookup"], 1))
            return {
                "R": [scan("R", tables["R"], clock, settings["rate_r"])],
                "T": [*made, scan("T", tables["T"], clock, settings["rate_t"])],
            }

        prefer = Compare("<", Column(ColumnRef("R", "key")), Literal(wanted, INT), INT)
        found = watch(
            spec,
            access,
            Options(policy="interactive", batch_size=1, seed=settings.seed),
            lambda done: settings.progress(begin + done / 2),
            prefer=prefer if preferring else None,
        )
        return found, len(made[0].answered)

    plain, plain_lookups = side(0.0, preferring=False)
    eager, eager_lookups = side(0.5, preferring=not settings.ablated)

    def first(one: Watched) -> np.ndarray:
        """Return when the results came that the user wants."""
        times: np.ndarray = one.times[one.table["R_key"].to_numpy() < wanted]
        return times

    means = {"plain": first(plain).mean(), "eager": first(eager).mean()}
    # When the last tuple of R is there, and one preferred lookup after the other has been answered.
    soonest = tuples / settings["rate_r"] + wanted * settings["lookup"]
    order = float((np.argsort(np.argsort(eager.times))[eager.table["R_key"].to_numpy() < wanted] + 1).mean())
    curves = [
        Curve(f"preferred, {name}", (0, *first(one)), range(len(first(one)) + 1))
        for name, one in (("preference", eager), ("none", plain))
    ]
    return Outcome(
        (
            Panel("results that the user prefers", "time (s)", "results", curves, kind="steps"),
            Panel(
                "all results",
                "time (s)",
                "results",
                (eager.curve("preference"), plain.curve("none")),
                kind="steps",
            ),
        ),
        {
            "mean_preferred": float(means["eager"]),
            "mean_preferred_without": float(means["plain"]),
            "last_preferred": float(first(eager)[-1]),
            "last_preferred_without": float(first(plain)[-1]),
            "end": eager.end,
            "end_without": plain.end,
            "lookups": eager_lookups,
            "lookups_without": plain_lookups,
            "mean_place": order,
        },
        (
            Check(
                "the same answer",
                eager.answer == plain.answer and len(eager.times) == tuples,
                f"{len(eager.times)} and {len(plain.times)} results",
            ),
            # Without a preference they are anywhere; with it the index has only them to answer at first. That
            # takes it a third of the time of T's scan, and them a sixth on average, after R's scan.
            Check(
                "preferred results come in 60 % of the time or less, on average",
                means["eager"] <= 0.6 * means["plain"],
                f"{means['eager']:.1f} s instead of {means['plain']:.1f} s",
            ),
            Check(
                "the last of them is there once the index could have answered them all, within 5 %",
                first(eager)[-1] <= 1.05 * soonest,
                f"{first(eager)[-1]:.1f} s; R's scan and {wanted} lookups take {soonest:.1f} s",
            ),
            Check(
                "the same total time, within 10 %",
                abs(eager.end - plain.end) <= 0.1 * plain.end,
                f"{eager.end:.1f} and {plain.end:.1f} s",
            ),
            # A preference changes the order of work. Preferred tuples ask in any case, others only when that
            # pays, so a few more lookups may be made.
            Check(
                "about the same number of lookups, within 10 %",
                abs(eager_lookups - plain_lookups) <= 0.1 * plain_lookups,
                f"{eager_lookups} and {plain_lookups}",
            ),
        ),
    )


EXPERIMENT = Experiment(
    id="stems-interactive",
    title="results that the user wants first",
    source="Raman, Deshpande & Hellerstein 2003, section 4.1 and section 4 (fifth of the salient points)",
    claim=(
        "Tuples that the user prefers are routed for the most benefit per second and bounced to the index: "
        "their results come first, while all results take about as long as without a preference."
    ),
    mechanism="the preference",
    parameters=(
        Parameter("tuples", 1000, 50, 100_000, "tuples", "in R and in T, one for each key"),
        Parameter("preferred", 0.1, 0.01, 0.5, "", "share of R that the user prefers"),
        Parameter("rate_r", 200.0, 0.01, 1e6, "tuples/s", "of the scan of R"),
        Parameter("rate_t", 17.0, 0.01, 1e6, "tuples/s", "of the scan of T"),
        Parameter("lookup", 0.2, 1e-4, 100.0, "s", "that a lookup in T takes; one at a time"),
    ),
    run=run,
)
