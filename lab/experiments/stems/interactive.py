"""R.key = T.key, where T has an index and a scan, and the user wants to see some tuples of R first.

The paper's policy routes for the most benefit per second; tuples that the user prefers are bounced to the
index even though the scan would find them, ahead of all others (section 4.1, SteM BounceBack). Interests are
graded, and may change with what is seen (section 1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lab.experiments.experiment import Curve, Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.indexes import RemoteIndex
from lab.experiments.stems.watched import (
    INT,
    Watched,
    check_answers,
    over_time,
    scan,
    table_r,
    table_t,
    watch,
)
from millrace.engine.arrivals.access_methods import Access
from millrace.engine.expressions import And, Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.runs.eddy_run import EddyRun
from millrace.limits.clock import VirtualClock

INDIFFERENT, UNSCANNED, ONE_GRADE, DEAF = "indifferent", "slow-scan", "one-grade", "deaf"

Change = tuple[float, Callable[[EddyRun], None]]


def keys(low: int, high: int) -> Predicate:
    """Return ``R.key >= low AND R.key < high``."""
    key = Column(ColumnRef("R", "key"))
    return And((Compare(">=", key, Literal(low, INT), INT), Compare("<", key, Literal(high, INT), INT)))


def times(run: Watched, low: int, high: int) -> np.ndarray:
    """Return when the results of these keys came."""
    found = run.table["R_key"].to_numpy()
    return np.array(run.times[(found >= low) & (found < high)])


def curve(name: str, run: Watched, low: int, high: int) -> Curve:
    """Return the results of these keys over time."""
    came = times(run, low, high)
    return Curve(name, (0, *came), range(len(came) + 1))


def sides(settings: Settings, *wishes: Sequence[Predicate], then: Change | None = None) -> list[Watched]:
    """Run the join for a user who wants nothing, and by each of some wishes: what is wanted, the most first.

    At some moment, ``then`` does something to the run of the last one.
    """
    draw = np.random.default_rng(settings.seed)
    tables = {"R": table_r(draw, settings["tuples"], 1), "T": table_t(draw, settings["tuples"])}
    spec = block(tables, "R.key = T.key", all_columns=True)
    found = []
    for number, wish in enumerate(((), *wishes)):
        rate = settings["rate_t"] / (10 if number and settings.ablated == UNSCANNED else 1)
        clock = VirtualClock()
        r, t = (scan(a, tables[a], clock, each) for a, each in (("R", settings["rate_r"]), ("T", rate)))
        index = RemoteIndex(["key"], tables["T"], clock, settings["lookup"])
        access: Access = {"R": [r], "T": [index, t]}
        moved = then if number == len(wishes) else None
        found.append(watch(spec, clock, access, moved, prefer=wish, policy="interactive", seed=settings.seed))
    check_answers(settings["tuples"], *found)
    return found


def run(settings: Settings) -> Outcome:
    """Run the join with the preference and without."""
    tuples = settings["tuples"]
    wanted = round(settings["preferred"] * tuples)
    plain, eager = sides(settings, () if settings.ablated == INDIFFERENT else (keys(0, wanted),))
    first, without = times(eager, 0, wanted), times(plain, 0, wanted)
    # When the last tuple of R is there, and one preferred lookup after the other has been answered.
    soonest = tuples / settings["rate_r"] + wanted * settings["lookup"]
    figures = {
        "mean_ratio": first.mean() / without.mean(),
        "last_over_soonest": first[-1] / soonest,
        "end_ratio": eager.end / plain.end,
        "lookups_ratio": len(eager.answered) / max(1, len(plain.answered)),
    }
    shown = {"preference": eager, "none": plain}
    preferred = [curve(f"preferred, {name}", each, 0, wanted) for name, each in shown.items()]
    panels = [
        over_time("results that the user prefers", preferred),
        over_time("all results", [each.curve(name) for name, each in shown.items()]),
    ]
    return Outcome(panels, figures)


def changing(settings: Settings) -> Outcome:
    """Want A most and B next; half-way through A, want C most, B next, and A no more than the rest."""
    tuples = settings["tuples"]
    size = round(settings["preferred"] * tuples)
    bounds = {name: (size * place, size * (place + 1)) for place, name in enumerate("ABC")}
    a, b, c = (keys(*bounds[name]) for name in "ABC")
    moment = tuples / settings["rate_r"] + size / 2 * settings["lookup"]
    before: tuple[Predicate, ...] = (a, b)
    after: tuple[Predicate, ...] = (c, b)
    if settings.ablated == ONE_GRADE:
        before, after = (keys(0, 2 * size),), (keys(size, 3 * size),)
    later = before if settings.ablated == DEAF else after
    change = (moment, lambda eddy: eddy.prefer(later))
    plain, steady, changed = sides(settings, before, before, then=change)

    def waited(run: Watched, name: str) -> float:
        """Return how long after the moment results came on the average, of those that came later."""
        late = times(run, *bounds[name]) - moment
        return float(late[late > 0].mean())

    early = {name: times(steady, *bounds[name]).mean() for name in "AB"}
    figures = {
        "a_over_b": early["A"] / early["B"],
        "c_over_unchanged": waited(changed, "C") / waited(steady, "C"),
        "c_over_b": waited(changed, "C") / waited(changed, "B"),
        "last_over_soonest": (times(changed, *bounds["C"])[-1] - moment) / (size * settings["lookup"]),
        "end_ratio": changed.end / plain.end,
    }
    shown = {
        "A first, then B": (steady, "no change"),
        "and half-way through A: C first, then B": (changed, "C, then B"),
    }
    panels = [
        over_time(title, [curve(name, run, *bounds[name]) for name in "ABC"], marks=[(moment, words)])
        for title, (run, words) in shown.items()
    ]
    return Outcome(panels, figures)
