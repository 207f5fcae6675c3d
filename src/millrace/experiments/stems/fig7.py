"""Q1: R.a = S.x, where S can only be asked, one lookup at a time. An index join against SteMs.

Both ask for the 250 values of ``a`` that there are, in the order in which R brings them, so the remote source
is as busy in one as in the other. In the index join a tuple waits for the lookups of all before it; what it
looks for may be in the cache already. With SteMs the queue for the cache is another one than the queue for
the index.
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Parameter, Settings
from millrace.experiments.stems.watched import (
    Modules,
    Watched,
    WatchedIndex,
    block_of,
    scan,
    table_r,
    table_s,
    watch,
)
from millrace.options import Options


def run(settings: Settings) -> Outcome:
    """Run the join both ways."""
    draw = np.random.default_rng(settings.seed)
    values = settings.whole("values")
    tables = {"R": table_r(draw, settings.whole("tuples"), values), "S": table_s(values)}
    spec = block_of(tables, "R.a = S.x")

    def side(architecture: str, begin: float) -> tuple[Watched, np.ndarray]:
        made: list[WatchedIndex] = []

        def access(clock: VirtualClock) -> Modules:
            made.append(WatchedIndex("S.x", ["x"], tables["S"], clock, settings["lookup"], in_flight=1))
            return {"R": [scan("R", tables["R"], clock, settings["rate"])], "S": made}

        options = Options(architecture=architecture, batch_size=1)
        found = watch(spec, access, options, lambda done: settings.progress(begin + done / 2))
        return found, np.array([when for when, _ in made[0].answered])

    join, join_probes = side("joins", 0.0)
    stems, stems_probes = side("joins" if settings.ablated else "stems", 0.5)

    results = len(stems.times)
    moments = np.linspace(0, join.end, 500)
    ahead = int((stems.count(moments) - join.count(moments)).min())
    straight = results * moments / stems.end
    bend = float(np.abs(stems.count(moments) - straight)[moments <= stems.end].max()) / results
    apart = int(np.abs(np.searchsorted(join_probes, moments) - np.searchsorted(stems_probes, moments)).max())
    halves = {"join": join.share_at(0.5) / join.end, "stems": stems.share_at(0.5) / stems.end}
    return Outcome(
        (
            Panel(
                "(i) results",
                "time (s)",
                "results",
                (join.curve("index join"), stems.curve("SteMs")),
                kind="steps",
            ),
            Panel(
                "(ii) probes into S",
                "time (s)",
                "lookups answered",
                tuple(
                    Curve(name, (0, *probes), range(len(probes) + 1))
                    for name, probes in (("index join", join_probes), ("SteMs", stems_probes))
                ),
                kind="steps",
            ),
        ),
        {
            "probes_join": len(join_probes),
            "probes_stems": len(stems_probes),
            "end_join": join.end,
            "end_stems": stems.end,
            "half_join": halves["join"],
            "half_stems": halves["stems"],
            "bend": bend,
        },
        (
            Check(
                "both return the same answer",
                join.answer == stems.answer and results == tables["R"].num_rows,
                f"{len(join.times)} and {results} results",
            ),
            Check(
                f"both send {values} probes to S",
                len(join_probes) == len(stems_probes) == values,
                f"{len(join_probes)} and {len(stems_probes)}",
            ),
            # "almost identical": the bottleneck is the same, and R brings new values faster than it takes
            # them. A few lookups may begin later where R has not brought the next value yet.
            Check(
                "the lookup caches build up at the same rate, within 3 % of the probes",
                apart <= max(1, 0.03 * values),
                f"{apart} probes apart at most",
            ),
            # "about the same time": the sum of the same lookups, and R's first tuple.
            Check(
                "the same end, within 2 %",
                abs(join.end - stems.end) <= 0.02 * join.end,
                f"{join.end:.1f} and {stems.end:.1f} s",
            ),
            # The first half of 1,000 tuples has 1 - exp(-2) = 86 % of the 250 values, randomly assigned: so
            # long the index join needs for it. A straight line needs 50 %.
            Check(
                "the index join is parabolic: half of the results after 80 % of the time or later",
                halves["join"] >= 0.8,
                f"at {halves['join']:.0%}",
            ),
            Check(
                "SteMs return half of the results by 60 % of the time",
                halves["stems"] <= 0.6,
                f"at {halves['stems']:.0%}",
            ),
            # Values that occur often tend to come early, so the line bends upwards a little.
            Check(
                "with SteMs results are near-linear over time, within 15 % of all results",
                bend <= 0.15,
                f"{bend:.1%} off a straight line",
            ),
            Check(
                "no head-of-line blocking: SteMs are never behind by more than one answer",
                ahead >= -max(np.bincount(tables["R"]["a"].to_numpy())),
                f"{-min(0, ahead)} results behind at most",
            ),
        ),
    )


EXPERIMENT = Experiment(
    id="stems-fig7",
    title="an index join without head-of-line blocking",
    source="Raman, Deshpande & Hellerstein 2003, section 4.2, figure 7",
    claim=(
        "SteMs and the index join send the same probes to the remote source and end at the same time; with "
        "SteMs results come near-linearly, while the index join's curve is parabolic, for tuples that could "
        "be answered from the cache wait behind tuples that cannot."
    ),
    mechanism="SteMs; without them both sides are the encapsulated index join",
    parameters=(
        Parameter("tuples", 1000, 50, 100_000, "tuples", "in R"),
        Parameter("values", 250, 10, 10_000, "values", "of R.a, keys of S"),
        Parameter("rate", 500.0, 0.1, 1e6, "tuples/s", "of the scan of R"),
        Parameter("lookup", 1.0, 1e-3, 100.0, "s", "that a lookup in S takes; one at a time"),
    ),
    run=run,
)
