"""Query scrambling: while an input is silent, STAIRs join what waits for it with what is there.

Deshpande & Hellerstein 2004, section 3.3. R stalls half-way; S, routed to R first, waits for it. Meanwhile
the tuples of S are promoted by T, which keeps one in five, so that R finds what is as good as a result when
it goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from millrace.arrivals.access_modules import Scan
from millrace.clock import VirtualClock
from millrace.experiments.experiment import Outcome, Panel, Settings
from millrace.experiments.lab.chain import THINNING, chain, results, tables
from millrace.experiments.lab.run import finish
from millrace.experiments.lab.sources import all_batches, batches
from millrace.figures import CellFigures
from millrace.options import Options
from millrace.runs.eddy_run import EddyRun

_STALL = 100.0


class Resuming(Scan):
    """A scan that stalls half-way, and tells when it has gone on."""

    def __init__(self, table: pa.Table, batch: int, clock: VirtualClock, told: Callable[[], None]) -> None:
        stall = (table.num_rows // 2 // batch, _STALL)
        super().__init__("R", batches(table, batch), clock, every=batch / 1e6, stall=stall)
        self._told: Callable[[], None] | None = told

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch if it has arrived."""
        batch = super().poll()
        if batch is not None and self._told is not None and self._clock.now() >= _STALL:
            self._told()
            self._told = None
        return batch


def routed(figures: CellFigures) -> int:
    """Return the tuples that joins were sent and made."""
    return sum(m.tuples_in + m.tuples_out for m in figures.modules if m.action == "join")


def work(settings: Settings, architecture: str) -> tuple[int, int]:
    """Return what joins did before R went on, moves included, and what they did from then on."""
    data = tables(THINNING, settings["scale"], settings.seed)
    clock = VirtualClock()
    batch = settings["batch"]
    noted: list[CellFigures] = []
    options = Options(
        architecture=architecture,
        policy="fixed",
        order=("R", "T"),
        intermediate=True,
        batch_size=batch,
        online=True,
    )
    sources = all_batches({alias: data[alias] for alias in "ST"}, batch)
    access = {"R": [Resuming(data["R"], batch, clock, lambda: noted.append(eddy.figures()))]}
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
