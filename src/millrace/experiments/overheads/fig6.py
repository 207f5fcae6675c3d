"""Figure 6: star joins by symmetric hash joins, routed by an eddy and in a static plan."""

from __future__ import annotations

from millrace.experiments.experiment import Outcome, Parameter, Settings
from millrace.experiments.overheads.star import KEY, WAYS, aliases, star, steps
from millrace.experiments.overheads.sweep import ROUNDS, Query, outcome, sweep
from millrace.experiments.overheads.wisconsin import wisconsin
from millrace.experiments.stated import stated


def run(settings: Settings) -> Outcome:
    """Measure Select-Count-3 to Select-All-5."""
    names = aliases("tenk", max(WAYS))
    whole = {alias: wisconsin(settings.whole("tuples"), [settings.seed, i]) for i, alias in enumerate(names)}
    kinds = [(f"{what} {ways}", ways, what == "count") for what in ("count", "all") for ways in WAYS]
    step = steps(settings.progress, len(kinds))
    swept = {}
    for number, (name, ways, count) in enumerate(kinds):
        tables = {alias: whole[alias].select([KEY]) if count else whole[alias] for alias in names[:ways]}
        swept[name] = sweep(Query(name, star(tables, count=count), tables, "joins"), settings, step(number))
    return outcome(swept, "count 3")


EXPERIMENT = stated(
    "overheads-fig6",
    (
        Parameter("tuples", 10_000, 1000, 100_000, "tuples", "in each of tenk1 to tenk5"),
        ROUNDS,
    ),
    run,
    wall=True,
)
