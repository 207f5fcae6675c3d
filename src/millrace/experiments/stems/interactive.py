"""R.key = T.key, where T has an index and a scan, and the user wants to see some tuples of R first.

The paper's policy routes for the most benefit per second; tuples that the user prefers are bounced to the
index even though the scan would find them, ahead of all others (section 4.1, SteM BounceBack). Interests are
graded, and may change with what is seen (section 1.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Curve, Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stems.watched import (
    INT,
    Modules,
    Watched,
    WatchedIndex,
    over_time,
    scan,
    table_r,
    table_t,
    watch,
)
from millrace.expressions import And, Column, ColumnRef, Compare, Literal, Predicate
from millrace.options import Options

INDIFFERENT, UNSCANNED, ONE_GRADE, DEAF = "indifferent", "slow-scan", "one-grade", "deaf"


@dataclass(frozen=True)
class Wish:
    """What is wanted: the most first, and other things from a moment on."""

    first: Sequence[Predicate] = ()
    moment: float = 0.0
    later: Sequence[Predicate] | None = None


def keys(low: int, high: int) -> Predicate:
    """Return ``R.key >= low AND R.key < high``."""
    key = Column(ColumnRef("R", "key"))
    return And((Compare(">=", key, Literal(low, INT), INT), Compare("<", key, Literal(high, INT), INT)))


def sides(settings: Settings, wishes: Sequence[Wish]) -> list[Watched]:
    """Run the join by each of some wishes, the first of them for nothing.

    Raises:
        ExecutionError: The answers differ.
    """
    draw = np.random.default_rng(settings.seed)
    tuples = settings.whole("tuples")
    tables = {"R": table_r(draw, tuples, 1), "T": table_t(draw, tuples)}
    spec = block(tables, "R.key = T.key", all_columns=True)
    found: list[Watched] = []
    for number, wish in enumerate(wishes):
        rate = settings["rate_t"] / (10 if number and settings.ablated == UNSCANNED else 1)

        def access(clock: VirtualClock, rate: float = rate) -> Modules:
            index = WatchedIndex("T.key", ["key"], tables["T"], clock, settings["lookup"], 1)
            scans = [scan(a, tables[a], clock, each) for a, each in (("R", settings["rate_r"]), ("T", rate))]
            return {"R": scans[:1], "T": [index, *scans[1:]]}

        ran = watch(
            spec,
            access,
            Options(policy="interactive", batch_size=1, seed=settings.seed),
            lambda done, number=number: settings.progress((number + done) / len(wishes)),  # type: ignore[misc]
            None if wish.later is None else (wish.moment, lambda eddy, wish=wish: eddy.prefer(wish.later)),  # type: ignore[misc]
            prefer=wish.first,
        )
        if len(ran.times) != tuples or (found and ran.answer != found[0].answer):
            raise ExecutionError(f"{len(ran.times)} results of {tuples}")
        found.append(ran)
    return found


def times(one: Watched, low: int, high: int) -> np.ndarray:
    """Return when the results of these keys came."""
    found = one.table["R_key"].to_numpy()
    return np.array(one.times[(found >= low) & (found < high)])


def run(settings: Settings) -> Outcome:
    """Run the join with the preference and without."""
    tuples = settings.whole("tuples")
    wanted = round(settings["preferred"] * tuples)
    prefer = () if settings.ablated == INDIFFERENT else (keys(0, wanted),)
    plain, eager = sides(settings, (Wish(), Wish(prefer)))
    first = partial(times, low=0, high=wanted)
    means = {"plain": first(plain).mean(), "eager": first(eager).mean()}
    # When the last tuple of R is there, and one preferred lookup after the other has been answered.
    soonest = tuples / settings["rate_r"] + wanted * settings["lookup"]
    order = float((np.argsort(np.argsort(eager.times))[eager.table["R_key"].to_numpy() < wanted] + 1).mean())
    curves = [
        Curve(f"preferred, {name}", (0, *first(one)), range(len(first(one)) + 1))
        for name, one in (("preference", eager), ("none", plain))
    ]
    every = (eager.curve("preference"), plain.curve("none"))
    return Outcome(
        (
            over_time("results that the user prefers", curves),
            over_time("all results", every),
        ),
        {
            "mean_preferred": float(means["eager"]),
            "mean_preferred_without": float(means["plain"]),
            "last_preferred": float(first(eager)[-1]),
            "last_preferred_without": float(first(plain)[-1]),
            "end": eager.end,
            "end_without": plain.end,
            "lookups": len(eager.answered),
            "lookups_without": len(plain.answered),
            "mean_place": order,
            "mean_ratio": float(means["eager"] / means["plain"]),
            "last_over_soonest": float(first(eager)[-1] / soonest),
            "end_ratio": eager.end / plain.end,
            "lookups_ratio": len(eager.answered) / max(1, len(plain.answered)),
        },
    )


def changing(settings: Settings) -> Outcome:
    """Want A most and B next; half-way through A, want C most, B next, and A no more than the rest."""
    tuples = settings.whole("tuples")
    size = round(settings["preferred"] * tuples)
    bounds = {name: (size * place, size * (place + 1)) for place, name in enumerate("ABC")}
    a, b, c = (keys(*bounds[name]) for name in "ABC")
    moment = tuples / settings["rate_r"] + size / 2 * settings["lookup"]
    before, after = (a, b), (c, b)
    if settings.ablated == ONE_GRADE:
        before, after = (keys(0, 2 * size),), (keys(size, 3 * size),)  # type: ignore[assignment]
    change = Wish(before, moment, before if settings.ablated == DEAF else after)
    plain, steady, changed = sides(settings, (Wish(), Wish(before), change))

    def waited(one: Watched, name: str) -> float:
        """Return how long after the moment results came on the average, of those that came later."""
        late = times(one, *bounds[name]) - moment
        return float(late[late > 0].mean())

    early = {name: float(times(steady, *bounds[name]).mean()) for name in "AB"}
    figures = {
        "a_over_b": early["A"] / early["B"],
        "c_over_unchanged": waited(changed, "C") / waited(steady, "C"),
        "c_over_b": waited(changed, "C") / waited(changed, "B"),
        "last_over_soonest": (times(changed, *bounds["C"])[-1] - moment) / (size * settings["lookup"]),
        "end_ratio": changed.end / plain.end,
    }
    panels = [
        over_time(
            title,
            [Curve(n, (0, *times(one, *bounds[n])), range(size + 1)) for n in "ABC"],
            marks=((moment, "C, then B") if one is changed else (moment, "no change"),),
        )
        for title, one in (("A first, then B", steady), ("and half-way through A: C first, then B", changed))
    ]
    return Outcome(panels, figures)
