"""Figure 8: two hash ripple joins that cost the same, one of them more or less selective than the other."""

from __future__ import annotations

from millrace.experiments.eddies.join_runs import judged, run_versions
from millrace.experiments.eddies.three_tables import PARAMETERS, Version
from millrace.experiments.experiment import Experiment, Outcome, Settings

SELECTIVE = Version("R⋈S 20 %", 0.2, 1.0, "R⋈S first")
MULTIPLYING = Version("R⋈S 180 %", 1.8, 1.0, "S⋈T first")


def run(settings: Settings) -> Outcome:
    """Run both orders and both eddies on both versions."""
    versions = (SELECTIVE, MULTIPLYING)
    return judged(versions, run_versions(versions, settings), "R⋈S and S⋈T by hashing; S⋈T keeps 100 % of S")


EXPERIMENT = Experiment(
    id="eddies-fig8",
    title="Two hash joins",
    source="Avnur & Hellerstein 2000, section 4.3, figure 8",
    claim="With two hash ripple joins, S⋈T keeping 100 % of S and R⋈S 20 % or 180 %, a lottery goes on "
    "performing nearly optimally.",
    mechanism="the lottery's tickets are replaced by even shares",
    parameters=PARAMETERS,
    run=run,
)
