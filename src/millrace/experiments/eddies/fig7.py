"""Figure 7: a hash ripple join that multiplies tuples, and a selective index join."""

from __future__ import annotations

from millrace.experiments.eddies.join_runs import judged, run_versions
from millrace.experiments.eddies.three_tables import INDEX, PARAMETERS, Version
from millrace.experiments.experiment import Experiment, Outcome, Settings


def version(index: float) -> Version:
    """Return the query: 1.8 matches in R, and an index on T that knows one tuple of S in ten."""
    return Version("hash and index join", 1.8, 0.1, "S⋈T first", index)


def run(settings: Settings) -> Outcome:
    """Run both orders and both eddies."""
    versions = (version(settings["index"]),)
    return judged(
        versions, run_versions(versions, settings), "R⋈S by hashing (1.8 matches), S⋈T by index (0.1)"
    )


EXPERIMENT = Experiment(
    id="eddies-fig7",
    title="A hash join and an index join",
    source="Avnur & Hellerstein 2000, section 4.3, figure 7",
    claim="With a hash ripple join that multiplies tuples and a selective index join, a lottery performs "
    "nearly optimally, and a naive eddy in between the best and the worst static plan.",
    mechanism="the lottery's tickets are replaced by even shares",
    parameters=(*PARAMETERS, INDEX),
    run=run,
)
