"""R.key = T.key, where T has an index and a scan, and the user wants to see some tuples of R first.

The paper's policy routes for the most benefit per second; tuples that the user prefers are bounced to the
index even though the scan would find them, ahead of all others (section 4.1, SteM BounceBack).
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Curve, Outcome, Panel, Parameter, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stated import stated
from millrace.experiments.stems.watched import (
    INT,
    Modules,
    Watched,
    WatchedIndex,
    scan,
    table_r,
    table_t,
    watch,
)
from millrace.expressions import Column, ColumnRef, Compare, Literal
from millrace.options import Options

INDIFFERENT, UNSCANNED = "indifferent", "slow-scan"


def run(settings: Settings) -> Outcome:
    """Run the join with the preference and without."""
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    wanted = round(settings["preferred"] * tuples)
    tables = {"R": table_r(draw, tuples, 1), "T": table_t(draw, tuples)}
    spec = block(tables, "R.key = T.key", all_columns=True)

    def side(begin: float, *, preferring: bool) -> tuple[Watched, int]:
        made: list[WatchedIndex] = []

        rate = settings["rate_t"] / (10 if preferring and settings.ablated == UNSCANNED else 1)

        def access(clock: VirtualClock) -> Modules:
            made.append(WatchedIndex("T.key", ["key"], tables["T"], clock, settings["lookup"], 1))
            return {
                "R": [scan("R", tables["R"], clock, settings["rate_r"])],
                "T": [*made, scan("T", tables["T"], clock, rate)],
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

    indifferent = settings.ablated == INDIFFERENT
    plain, plain_lookups = side(0.0, preferring=False)
    eager, eager_lookups = side(0.5, preferring=not indifferent)

    if eager.answer != plain.answer or len(eager.times) != tuples:
        raise ExecutionError(f"{len(eager.times)} and {len(plain.times)} results of {tuples}")

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
            "mean_ratio": float(means["eager"] / means["plain"]),
            "last_over_soonest": float(first(eager)[-1] / soonest),
            "end_ratio": eager.end / plain.end,
            "lookups_ratio": eager_lookups / max(1, plain_lookups),
        },
    )


EXPERIMENT = stated(
    "stems-interactive",
    (
        Parameter("tuples", 1000, 50, 100_000, "tuples", "in R and in T, one for each key"),
        Parameter("preferred", 0.1, 0.01, 0.5, "", "share of R that the user prefers"),
        Parameter("rate_r", 200.0, 0.01, 1e6, "tuples/s", "of the scan of R"),
        Parameter("rate_t", 17.0, 0.01, 1e6, "tuples/s", "of the scan of T"),
        Parameter("lookup", 0.2, 1e-4, 100.0, "s", "that a lookup in T takes; one at a time"),
    ),
    run,
)
