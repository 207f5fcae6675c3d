"""Figure 6: star joins by symmetric hash joins, routed by an eddy and in a static plan."""

from __future__ import annotations

from millrace.experiments.experiment import Experiment, Outcome, Parameter, Settings
from millrace.experiments.overheads.star import KEY, WAYS, aliases, star, steps
from millrace.experiments.overheads.sweep import ROUNDS, Query, outcome, sweep
from millrace.experiments.overheads.wisconsin import wisconsin


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
    return outcome(swept, "count 3", settings["most"])


EXPERIMENT = Experiment(
    id="overheads-fig6",
    title="Overhead of an eddy with symmetric hash joins",
    source="Deshpande 2004, section 3.3, figure 6",
    claim="Star joins of three, four and five tables in which every plan costs the same. What an eddy takes "
    "beyond a static plan of the same symmetric hash joins is small once decisions are amortized over "
    "tuples. Batches have X tuples on both sides, and decisions are renewed every X.",
    mechanism="amortizing decisions over X tuples: each tuple is routed alone, by a decision of its own",
    parameters=(
        Parameter("tuples", 10_000, 1000, 100_000, "tuples", "in each of tenk1 to tenk5"),
        ROUNDS,
        Parameter("most", 1.05, 1.0, 100.0, "times", "the most that an eddy may take"),
    ),
    run=run,
    wall=True,
)
