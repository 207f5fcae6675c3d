"""Figure 7 (iii): result tuples over time for the TPC-H query."""

from __future__ import annotations

import numpy as np

from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Settings
from millrace.experiments.stairs import tpch
from millrace.experiments.stairs.fig7_i import BEST, JOINS, STAIRS, STEMS, WORST
from millrace.experiments.stairs.side import Work
from millrace.experiments.stairs.tpch import CUSTOMER_FIRST, LINEITEM_FIRST

_LOOKS = 200


def run(settings: Settings) -> Outcome:
    """Run the experiment."""
    query = tpch.query(settings.seed, settings["scale"], settings.whole("batch"))
    sides = {
        BEST: ("static", None, CUSTOMER_FIRST),
        STAIRS: ("stairs", "never" if settings.ablated else None, LINEITEM_FIRST),
        JOINS: ("joins", None, LINEITEM_FIRST),
        STEMS: ("stems", None, LINEITEM_FIRST),
        WORST: ("static", None, LINEITEM_FIRST),
    }
    works = {}
    for name, (architecture, migration, order) in sides.items():
        works[name] = query.work(architecture, migration, order=order, looks=_LOOKS)
        settings.progress(len(works) / len(sides))
    panel = Panel(
        "Output over time",
        "work, seconds of the virtual clock",
        "result tuples",
        [Curve(name, *zip(*work.curve, strict=True)) for name, work in works.items()],
        kind="steps",
    )
    # Seconds until three quarters of the results are there, and half: the first come before anybody moves.
    late, half = ({name: reached(work, share) for name, work in works.items()} for share in (0.75, 0.5))
    others = [name for name in works if name not in (BEST, STAIRS)]
    ahead = min(late[name] / late[STAIRS] for name in others)
    checks = [
        Check(
            "STAIRs give results nearly as soon as the best static plan",
            late[STAIRS] <= 1.25 * late[BEST],
            f"three quarters of them after {late[STAIRS] / late[BEST]:.2f} times the work",
        ),
        Check(
            "STAIRs give results sooner than all others",
            ahead >= 1.04,
            ", ".join(f"{name} after {late[name] / late[STAIRS]:.2f} times the work" for name in others),
        ),
    ]
    figures = {"stairs_vs_best": late[STAIRS] / late[BEST], "next_vs_stairs": ahead}
    figures |= {f"half_{name}": value for name, value in half.items()}
    return Outcome([panel], figures, checks)


def reached(work: Work, share: float) -> float:
    """Return the seconds after which a share of the results was there."""
    seconds, rows = (np.array(each, float) for each in zip(*work.curve, strict=True))
    return float(np.interp(share * rows[-1], rows, seconds))


EXPERIMENT = Experiment(
    id="stairs-fig7-iii",
    title="Results over time",
    source="Deshpande & Hellerstein 2004, section 5.2, figure 7 (iii)",
    claim="STAIRs give results at a rate close to that of the best static plan, and ahead of all others.",
    mechanism="state migration; without it STAIRs are EddyJoins",
    parameters=tpch.PARAMETERS,
    run=run,
)
