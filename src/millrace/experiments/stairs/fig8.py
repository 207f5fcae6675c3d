"""Figure 8: random set-ups, STAIRs against static plans, SteMs and EddyJoins; and the migration policies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from millrace.experiments.experiment import Curve, Outcome, Panel, Settings
from millrace.experiments.stairs.arriving import Arriving
from millrace.experiments.stairs.costs import Costs
from millrace.experiments.stairs.query import STILL, Query, always
from millrace.experiments.stairs.setups import setup
from millrace.migration import default_migration
from millrace.options import MIGRATIONS

Ratios = np.ndarray[Any, np.dtype[np.float64]]

HASTY, SLOW = "hasty", "worst-of-three"
SHJ, STEMS, JOINS, STAIRS = "SHJ", "SteMs", "EddyJoins", "STAIRs"
NAMES = {"static": SHJ, "stems": STEMS, "joins": JOINS, "stairs": STAIRS}

EVEN = 1.1
"""Within so much of each other two sides are taken to be even, as in the paper."""

MOST = 50.0
"""A side that takes so many times the work of the best one so far is stopped, and counts as that."""

COSTS = Costs(read=0)
"""Reading is left out: it is the same for all, and beside it differences would look smaller than they are."""

_TOGETHER = 30
"""From so many set-ups on, processes are worth their start."""


@dataclass(frozen=True)
class Trial:
    """One set-up: by side, seconds of work, and tuples made that are no results (and one)."""

    number: int
    seconds: Mapping[str, float]
    made: Mapping[str, int]


def trial(
    number: int,
    *,
    seed: int,
    scale: float,
    batch: int,
    sides: Sequence[tuple[str, str | None]],
    stuck: bool = False,
) -> Trial:
    """Run all sides of a set-up.

    Args:
        number: Of the set-up.
        seed: Of all set-ups.
        scale: Of the tables.
        batch: Tuples at a time, at full scale.
        sides: Architectures, with a migration policy for STAIRs.
        stuck: STAIRs keep to the initial plan.

    Raises:
        ExecutionError: A side's result is wrong.
    """
    found = setup(seed, number, scale)
    # The paper's eddies may change a decision every 1,000 tuples; smaller tables need as many chances.
    batch = max(10, round(batch * scale))
    # As many decisions as at full size, then, which take as large a part of all work as there.
    costs = replace(COSTS, route=COSTS.route * scale, appraise=COSTS.appraise * scale)
    query = Query(found.spec, found.streams, batch, found.rows, f"set-up {number}: ")
    seconds: dict[str, float] = {}
    made: dict[str, int] = {}

    def opening(read: Arriving) -> bool:
        return sum(read.read.values()) < batch

    for architecture, migration in sides:
        work = query.work(
            architecture,
            migration,
            order=found.plan,
            held=always if stuck and architecture == "stairs" else opening,
            costs=costs,
            looks=8,
            limit=MOST * min(seconds.values(), default=np.inf),
        )
        name = _name(architecture, migration)
        seconds[name] = work.seconds
        made[name] = 1 + work.figures.intermediate_tuples + work.figures.recomputed_tuples
    return Trial(number, seconds, made)


def _name(architecture: str, migration: str | None) -> str:
    named = migration is not None and migration != default_migration()
    return NAMES[architecture] + (f" ({migration})" if named else "")


def _trials(run: Callable[[int], Trial], number: int, progress: Callable[[float], None]) -> Iterator[Trial]:
    """Run set-ups, side by side where there are many; in order."""
    if number < _TOGETHER:
        for i in range(number):
            yield run(i)
            progress((i + 1) / number)
        return
    with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn")) as pool:
        for i, done in enumerate(pool.map(run, range(number), chunksize=4)):
            yield done
            progress((i + 1) / number)


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    stairs = {STILL: "never", HASTY: "eager"}.get(settings.ablated, default_migration())
    # What is run first bounds what others may take; a random plan is the dearest as a rule.
    sides: list[tuple[str, str | None]] = [
        ("joins", None),
        ("stairs", stairs),
        ("stems", None),
        ("static", None),
    ]
    if settings.whole("policies"):
        sides += [("stairs", each) for each in MIGRATIONS if each not in ("never", stairs)]
    one = partial(
        trial,
        seed=settings.seed,
        scale=settings["scale"],
        batch=settings.whole("batch"),
        sides=sides,
        stuck=settings.ablated == SLOW,
    )
    trials = list(_trials(one, settings.whole("setups"), settings.progress))
    ours = _name("stairs", stairs)
    ratios = {
        name: np.array([each.seconds[ours] / each.seconds[name] for each in trials])
        for name in (SHJ, STEMS, JOINS)
    }
    policies = {
        name: np.array([each.seconds[name] / each.seconds[JOINS] for each in trials])
        for name in (_name(*side) for side in sides if side[0] == "stairs")
    }
    made = max(each.made[JOINS] / each.made[ours] for each in trials)
    figures = _figures(ratios, policies) | {"best_made_vs_eddyjoins": made}
    return Outcome(_panels(ratios, policies), figures)


def _panels(ratios: Mapping[str, Ratios], policies: Mapping[str, Ratios]) -> list[Panel]:
    """Return the figure: a set-up at each x, in the order of what STAIRs gain."""
    places = range(1, len(next(iter(ratios.values()))) + 1)
    panels = [
        Panel(
            f"STAIRs against {name}",
            "set-ups, by what STAIRs gain",
            f"work of {name} over that of STAIRs",
            [Curve(name, places, sorted(1 / ratio)), Curve("as much", places, [1.0] * len(ratio))],
            y_log=True,
        )
        for name, ratio in ratios.items()
    ]
    curves = [Curve(name, places, sorted(1 / ratio)) for name, ratio in policies.items()]
    panels.append(
        Panel(
            "Migration policies against EddyJoins",
            "set-ups, by what STAIRs gain",
            "work of EddyJoins over that of STAIRs",
            curves,
            y_log=True,
        )
    )
    return panels


def _figures(ratios: Mapping[str, Ratios], policies: Mapping[str, Ratios]) -> dict[str, float]:
    joins = ratios[JOINS]
    figures = {
        "within_10_percent": np.mean((joins <= EVEN) & (joins >= 1 / EVEN)),
        "worst_vs_eddyjoins": joins.max(),
        "best_vs_eddyjoins": 1 / joins.min(),
        "ahead_of_eddyjoins": np.mean(joins < 1 / EVEN),
        "behind_eddyjoins": np.mean(joins > EVEN),
        "lead_among_others": (joins < 1 / EVEN).sum()
        / np.maximum(1, ((joins < 1 / EVEN) | (joins > EVEN)).sum()),
    }
    for key, name in (("shj", SHJ), ("stems", STEMS)):
        figures |= {
            f"ahead_of_{key}": np.mean(ratios[name] <= EVEN),
            f"faster_than_{key}": np.mean(ratios[name] < 1),
            f"tenfold_{key}": np.mean(ratios[name] < 1 / 10),
            f"threefold_{key}": np.mean(ratios[name] < 1 / 3),
            f"best_vs_{key}": 1 / ratios[name].min(),
        }
    for name, ratio in policies.items():
        key = name.removeprefix(STAIRS).strip(" ()") or "default"
        figures |= {f"mean_{key}": _mean(ratio), f"worst_{key}": ratio.max()}
    return {name: float(value) for name, value in figures.items()}


def _mean(ratio: Ratios) -> float:
    return float(np.exp(np.log(ratio).mean()))
