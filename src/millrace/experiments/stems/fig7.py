"""Q1: R.a = S.x, where S can only be asked, one lookup at a time. An index join against SteMs.

Both ask for the 250 values of ``a`` that there are, in the order in which R brings them, so the remote source
is as busy in one as in the other. In the index join a tuple waits for the lookups of all before it; what it
looks for may be in the cache already. With SteMs the queue for the cache is another one than the queue for
the index.
"""

from __future__ import annotations

import numpy as np

from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Curve, Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stems.watched import (
    Modules,
    Watched,
    WatchedIndex,
    over_time,
    scan,
    table_r,
    table_s,
    watch,
)
from millrace.options import Options

ENCAPSULATED, UNBLOCKED, SLOWER = "encapsulated", "unblocked", "slower"


def run(settings: Settings) -> Outcome:
    """Run the join both ways."""
    draw = np.random.default_rng(settings.seed)
    values = settings.whole("values")
    tables = {"R": table_r(draw, settings.whole("tuples"), values), "S": table_s(values)}
    spec = block(tables, "R.a = S.x", all_columns=True)

    def side(architecture: str, begin: float, lookup: float = settings["lookup"]) -> Watched:
        def access(clock: VirtualClock) -> Modules:
            index = WatchedIndex("S.x", ["x"], tables["S"], clock, lookup, in_flight=1)
            return {"R": [scan("R", tables["R"], clock, settings["rate"])], "S": [index]}

        options = Options(architecture=architecture, batch_size=1)
        return watch(spec, access, options, lambda done: settings.progress(begin + done / 2))

    join = side("stems" if settings.ablated == UNBLOCKED else "joins", 0.0)
    slower = 1.1 if settings.ablated == SLOWER else 1.0
    architecture = "joins" if settings.ablated == ENCAPSULATED else "stems"
    stems = side(architecture, 0.5, slower * settings["lookup"])
    join_probes, stems_probes = (np.array([when for when, _ in each.answered]) for each in (join, stems))
    if not join.answer == stems.answer or len(join.times) != tables["R"].num_rows:
        raise ExecutionError(f"the two found {len(join.times)} and {len(stems.times)} results")

    results = len(stems.times)
    moments = np.linspace(0, join.end, 500)
    ahead = int((stems.count(moments) - join.count(moments)).min())
    straight = results * moments / stems.end
    bend = float(np.abs(stems.count(moments) - straight)[moments <= stems.end].max()) / results
    apart = int(np.abs(np.searchsorted(join_probes, moments) - np.searchsorted(stems_probes, moments)).max())
    halves = {"join": join.share_at(0.5) / join.end, "stems": stems.share_at(0.5) / stems.end}
    probes = [
        Curve(name, (0, *each), range(len(each) + 1))
        for name, each in (("index join", join_probes), ("SteMs", stems_probes))
    ]
    return Outcome(
        (
            over_time("(i) results", (join.curve("index join"), stems.curve("SteMs"))),
            over_time("(ii) probes into S", probes, "lookups answered"),
        ),
        {
            "probes_join": len(join_probes),
            "probes_stems": len(stems_probes),
            "end_join": join.end,
            "end_stems": stems.end,
            "half_join": halves["join"],
            "half_stems": halves["stems"],
            "bend": bend,
            "probes_apart": max(apart - 1, abs(len(join_probes) - values), abs(len(stems_probes) - values))
            / values,
            "end_ratio": stems.end / join.end,
            "behind": -min(0, ahead) / max(np.bincount(tables["R"]["a"].to_numpy())),
        },
    )
