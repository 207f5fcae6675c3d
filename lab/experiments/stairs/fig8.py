"""Figure 8: random set-ups, STAIRs against static plans, SteMs and EddyJoins; and the migration policies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.arriving import Arriving
from lab.experiments.lab.costs import Prices
from lab.experiments.lab.work import STILL, always
from lab.experiments.stairs.setups import setup
from millrace.engine.migration import default_migration
from millrace.options import MIGRATIONS

Ratios = np.ndarray[Any, np.dtype[np.float64]]
Side = tuple[str, str | None]
"""An architecture, with a migration policy for STAIRs."""

HASTY, SLOW = "hasty", "worst-of-three"
SHJ, STEMS, JOINS, STAIRS = "SHJ", "SteMs", "EddyJoins", "STAIRs"
NAMES = {"static": SHJ, "stems": STEMS, "joins": JOINS, "stairs": STAIRS}

EVEN = 1.1
"""Within so much of each other two sides are taken to be even, as in the paper."""

MOST = 50.0
"""A side that takes so many times the work of the best one so far is stopped, and counts as that."""

PRICES = Prices(read=0)
"""Reading is left out: it is the same for all, and beside it differences would look smaller than they are."""

_TOGETHER = 30
"""From so many set-ups on, processes are worth their start."""


def trial(
    number: int, *, seed: int, scale: float, batch: int, sides: Sequence[Side], stuck: bool = False
) -> tuple[dict[str, float], dict[str, int]]:
    """Run all sides of a set-up; ``stuck``, STAIRs keep to the initial plan.

    Tables are of a scale, and ``batch`` tuples would come at a time at full scale.

    Returns:
        By side, seconds of work, and tuples made that are no results (and one).

    Raises:
        ExecutionError: A side's result is wrong.
    """
    # The paper's eddies may change a decision every 1,000 tuples; smaller tables need as many chances.
    batch = max(10, round(batch * scale))
    found = setup(seed, number, scale, batch)
    # As many decisions as at full size, then, which take as large a part of all work as there.
    prices = replace(PRICES, route=PRICES.route * scale, appraise=PRICES.appraise * scale)
    seconds: dict[str, float] = {}
    made: dict[str, int] = {}

    def opening(arriving: Arriving) -> bool:
        return sum(arriving.read.values()) < batch

    for side in sides:
        work = found.query.work(
            *side,
            order=found.plan,
            held=always if stuck and side[0] == "stairs" else opening,
            prices=prices,
            looks=8,
            limit=MOST * min(seconds.values(), default=np.inf),
        )
        seconds[_name(side)] = work.seconds
        made[_name(side)] = 1 + work.figures.intermediate_tuples + work.figures.recomputed_tuples
    return seconds, made


def _name(side: Side) -> str:
    architecture, migration = side
    return NAMES[architecture] + (f" ({migration})" if migration not in (None, default_migration()) else "")


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    stairs = {STILL: "never", HASTY: "eager"}.get(settings.ablated, default_migration())
    # What is run first bounds what others may take; a random plan is the dearest as a rule.
    sides: list[Side] = [("joins", None), ("stairs", stairs), ("stems", None), ("static", None)]
    if settings["policies"]:
        sides += [("stairs", each) for each in MIGRATIONS if each not in ("never", stairs)]
    one = partial(
        trial,
        seed=settings.seed,
        scale=settings["scale"],
        batch=settings["batch"],
        sides=sides,
        stuck=settings.ablated == SLOW,
    )
    numbers = range(settings["setups"])
    if len(numbers) < _TOGETHER:
        trials = list(map(one, numbers))
    else:
        with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn")) as pool:
            trials = list(pool.map(one, numbers, chunksize=4))

    seconds = {name: np.array([worked[name] for worked, _ in trials]) for name in map(_name, sides)}
    ours = _name(("stairs", stairs))
    ratios = {name: seconds[ours] / seconds[name] for name in (SHJ, STEMS, JOINS)}
    policies = {name: each / seconds[JOINS] for name, each in seconds.items() if name.startswith(STAIRS)}
    figures = _figures(ratios, policies)
    figures["best_made_vs_eddyjoins"] = max(made[JOINS] / made[ours] for _, made in trials)
    return Outcome(_panels(ratios, policies), figures)


def _panels(ratios: Mapping[str, Ratios], policies: Mapping[str, Ratios]) -> list[Panel]:
    """Return the figure: a set-up at each x, in the order of what STAIRs gain."""

    def panel(title: str, label: str, shown: Mapping[str, Ratios], **more: Sequence[float]) -> Panel:
        places = range(1, len(ratios[JOINS]) + 1)
        curves = {name: sorted(1 / ratio) for name, ratio in shown.items()} | more
        return Panel.over(title, "set-ups, by what STAIRs gain", label, places, curves, y_log=True)

    even = {"as much": [1.0] * len(ratios[JOINS])}
    against = [
        panel(f"STAIRs against {name}", f"work of {name} over that of STAIRs", {name: ratio}, **even)
        for name, ratio in ratios.items()
    ]
    label = "work of EddyJoins over that of STAIRs"
    return [*against, panel("Migration policies against EddyJoins", label, policies)]


def _figures(ratios: Mapping[str, Ratios], policies: Mapping[str, Ratios]) -> dict[str, float]:
    joins = ratios[JOINS]
    ahead, behind = joins < 1 / EVEN, joins > EVEN
    figures = {
        "within_10_percent": np.mean(~ahead & ~behind),
        "worst_vs_eddyjoins": joins.max(),
        "best_vs_eddyjoins": 1 / joins.min(),
        "ahead_of_eddyjoins": np.mean(ahead),
        "behind_eddyjoins": np.mean(behind),
        "lead_among_others": ahead.sum() / max(1, (ahead | behind).sum()),
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
        figures |= {f"mean_{key}": np.exp(np.log(ratio).mean()), f"worst_{key}": ratio.max()}
    return figures
