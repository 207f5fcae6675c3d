"""Query scrambling: while an input is silent, STAIRs join what waits for it with what is there.

Deshpande & Hellerstein 2004, section 3.3. R stalls half-way; S, routed to R first, waits for it. Meanwhile
the tuples of S are promoted by T, which keeps one in five, so that R finds what is as good as a result when
it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from lab.experiments.experiment import Outcome, Panel, Settings
from lab.experiments.lab.chain import THINNING, chain, results, tables
from lab.experiments.lab.run import all_batches, batches, finish
from millrace.engine.arrivals.access_modules import Scan
from millrace.engine.figures import CellFigures
from millrace.engine.runs.eddy_run import EddyRun
from millrace.limits.clock import VirtualClock
from millrace.options import Options

_STALL = 100.0


def routed(figures: CellFigures) -> int:
    """Return the tuples that joins were sent and made."""
    return sum(m.tuples_in + m.tuples_out for m in figures.modules if m.action == "join")


def work(settings: Settings, architecture: str) -> tuple[int, int]:
    """Return what joins did before R went on, moves included, and what they did from then on."""
    data = tables(THINNING, settings["scale"], settings.seed)
    clock = VirtualClock()
    batch = settings["batch"]
    noted: list[CellFigures] = []

    def resuming() -> Iterator[pa.RecordBatch]:
        """Yield R, and note what was done until it went on after its stall."""
        for each in batches(data["R"], batch):
            if not noted and clock.now() >= _STALL:
                noted.append(eddy.figures())
            yield each

    options = Options(
        architecture=architecture,
        policy="fixed",
        order=("R", "T"),
        intermediate=True,
        batch_size=batch,
        online=True,
    )
    sources = all_batches({alias: data[alias] for alias in "ST"}, batch)
    stall = (data["R"].num_rows // 2 // batch, _STALL)
    access = {"R": [Scan("R", resuming(), clock, every=batch / 1e6, stall=stall)]}
    eddy = EddyRun(chain(data), sources, options, clock=clock, access=access)
    after = finish(eddy, clock, results(data)).figures
    (before,) = noted
    return routed(before) + before.recomputed_tuples + before.migrated_tuples, routed(after) - routed(before)


def run(settings: Settings) -> Outcome:
    """Run the query with scrambling and without."""
    idle, left = work(settings, "joins")
    busy, rest = work(settings, "joins" if settings.ablated else "stairs")
    label = "tuples through joins"
    panels = [
        Panel.bars("Until R goes on", label, {"waiting": idle, "scrambling": busy}),
        Panel.bars("From then on", label, {"waiting": left, "scrambling": rest}),
    ]
    figures = {"left": rest / left, "idle_work": (busy - idle) / idle, "total": (busy + rest) / (idle + left)}
    return Outcome(panels, figures)
