"""Q1: R.a = S.x, where S can only be asked, one lookup at a time. An index join against SteMs.

Both ask for the 250 values of ``a`` that there are, in the order in which R brings them, so the remote source
is as busy in one as in the other. In the index join a tuple waits for the lookups of all before it; what it
looks for may be in the cache already. With SteMs the queue for the cache is another one than the queue for
the index.
"""

from __future__ import annotations

import numpy as np

from millrace.arrivals.access_methods import Access
from millrace.clock import VirtualClock
from millrace.experiments.experiment import Curve, Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.lab.indexes import RemoteIndex
from millrace.experiments.stems.watched import (
    Watched,
    check_answers,
    over_time,
    scan,
    table_r,
    table_s,
    watch,
)

ENCAPSULATED, UNBLOCKED, SLOWER = "encapsulated", "unblocked", "slower"


def run(settings: Settings) -> Outcome:
    """Run the join both ways."""
    draw = np.random.default_rng(settings.seed)
    values, broken = settings["values"], settings.ablated
    tables = {"R": table_r(draw, settings["tuples"], values), "S": table_s(values)}
    spec = block(tables, "R.a = S.x", all_columns=True)

    def side(architecture: str, lookup: float) -> Watched:
        clock = VirtualClock()
        index = RemoteIndex(["x"], tables["S"], clock, lookup)
        access: Access = {"R": [scan("R", tables["R"], clock, settings["rate"])], "S": [index]}
        return watch(spec, clock, access, architecture=architecture)

    lookup = settings["lookup"]
    join = side("stems" if broken == UNBLOCKED else "joins", lookup)
    slower = lookup * (1.1 if broken == SLOWER else 1.0)
    stems = side("joins" if broken == ENCAPSULATED else "stems", slower)
    check_answers(tables["R"].num_rows, join, stems)
    join_probes, stems_probes = (np.array([when for when, _ in each.answered]) for each in (join, stems))

    moments = np.linspace(0, join.end, 500)
    ahead = int((stems.count(moments) - join.count(moments)).min())
    straight = len(stems.times) * moments / stems.end
    bend = np.abs(stems.count(moments) - straight)[moments <= stems.end].max()
    apart = np.abs(np.searchsorted(join_probes, moments) - np.searchsorted(stems_probes, moments)).max()
    figures = {
        "half_join": join.share_at(0.5) / join.end,
        "half_stems": stems.share_at(0.5) / stems.end,
        "bend": float(bend) / len(stems.times),
        "probes_apart": max(apart - 1, *(abs(len(each) - values) for each in (join_probes, stems_probes)))
        / values,
        "end_ratio": stems.end / join.end,
        "behind": -min(0, ahead) / max(np.bincount(tables["R"]["a"].to_numpy())),
    }
    probes = {"index join": join_probes, "SteMs": stems_probes}
    curves = [Curve(name, (0, *each), range(len(each) + 1)) for name, each in probes.items()]
    panels = [
        over_time("(i) results", [join.curve("index join"), stems.curve("SteMs")]),
        over_time("(ii) probes into S", curves, "lookups answered"),
    ]
    return Outcome(panels, figures)
