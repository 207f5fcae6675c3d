"""R.a = S.x by four join algorithms, all of them the same eddy over SteMs under one memory budget.

Section 3.1 ("Simulating and Hybridizing Non-Pipelined Join Algorithms"): which algorithm it is depends on
how SteMs cluster what is built before they bounce it back, and on when probes follow builds. What tells them
apart is their input and output: what goes to disk when, what comes back, and when results do. Declared costs:
reading a source, and bytes to and from disk; work in memory is taken to cost nothing. Tuples are clustered in
front of the SteMs here; the paper's SteMs bounce them back partition by partition, which comes to the same
order of builds and probes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Curve, Outcome, Settings
from lab.experiments.lab.block import block
from lab.experiments.lab.run import batches
from lab.experiments.stems.watched import INT, over_time
from millrace.engine.spill.spilling import SpillingEddy
from millrace.engine.spill.tally import Tally
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import Options

_NAMES = {
    "shj": "symmetric hash join",
    "hybrid": "hybrid hash join",
    "grace": "Grace hash join",
    "sort_merge": "sort-merge join",
}
_BATCH = 64


class Disk(Tally):
    """The books of spilling, and a clock that goes on with what is written and read.

    ``moved`` has for each time the moment, bytes written so far, and bytes read back so far.
    """

    def __init__(self, aliases: tuple[str, ...], clock: VirtualClock, rate: float) -> None:
        super().__init__(aliases)
        self.moved: list[tuple[float, int, int]] = [(0.0, 0, 0)]
        self._clock = clock
        self._rate = rate

    def wrote(self, relation: int, rows: int, size: int, seconds: float) -> None:
        """Book a batch written, and take its time."""
        super().wrote(relation, rows, size, seconds)
        self._move(size)

    def read(self, relation: int, rows: int, size: int, seconds: float) -> None:
        """Book a batch read back, and take its time."""
        super().read(relation, rows, size, seconds)
        self._move(size)

    def _move(self, size: int) -> None:
        self._clock.advance(size / self._rate)
        self.moved.append((self._clock.now(), self.bytes_written, self.bytes_read))


class Ran:
    """One run, by an algorithm as options name it.

    Attributes:
        times: When each result came,
        table: and the results, in the order in which they came.
        read_until: When the sources had been read.
        end: When all was done.
        written: Bytes that went to disk, and ``returned``, that came back.
        early: Share of the results that came before the sources had been read.
        order: Correlation between the place of a result and its key: 1 if they come by key, about 0 if not.
        phased: Whether nothing is read before the last byte is written.
        curves: Results, and megabytes to and from disk, over time.
    """

    def __init__(self, algorithm: str, tables: Mapping[str, pa.Table], settings: Settings) -> None:
        clock, spec = VirtualClock(), block(tables, "R.a = S.x", all_columns=True)

        def source(table: pa.Table) -> Iterator[pa.RecordBatch]:
            for batch in batches(table, _BATCH):
                clock.advance(batch.num_rows / settings["rate"])
                self.read_until = clock.now()
                yield batch

        options = Options(
            algorithm=algorithm,
            memory_budget=settings["budget"] * 1000,
            online=algorithm == "shj",
            batch_size=_BATCH,
        )
        sources = {alias: source(table) for alias, table in tables.items()}
        eddy = SpillingEddy(spec, sources, options, clock=clock)
        eddy.tally = disk = Disk(spec.aliases, clock, 1e6 * settings["disk"])
        found = [(clock.now(), batch) for batch in eddy.run()]
        times = self.times = np.repeat([when for when, _ in found], [batch.num_rows for _, batch in found])
        self.table = pa.Table.from_batches([batch for _, batch in found], spec.output_schema)
        self.end = clock.now()
        self.written, self.returned = disk.bytes_written, disk.bytes_read
        self.early = float((times < self.read_until).mean())
        self.order = float(np.corrcoef(np.arange(len(times)), self.table["R_a"].to_numpy())[0, 1])
        self.phased = all(out == self.written for _, out, back in disk.moved if back)
        when, out, back = np.array([*disk.moved, (self.end, self.written, self.returned)]).T
        thin = slice(None, None, max(1, len(times) // 500))
        shares = np.arange(1, len(times) + 1) / len(times)
        self.curves = [
            Curve("written (MB)", when, out / 1e6),
            Curve("read back (MB)", when, back / 1e6),
            Curve("share of results", (0, *times[thin], self.end), (0, *shares[thin], 1)),
        ]

    @property
    def answer(self) -> pa.Table:
        """The results in an order of their own."""
        return self.table.sort_by([(name, "ascending") for name in self.table.column_names]).combine_chunks()


def run(settings: Settings) -> Outcome:
    """Run the join by each algorithm."""
    draw = np.random.default_rng(settings.seed)
    tables = {
        "R": _table(draw, settings["tuples"], "a", settings["values"]),
        "S": _table(draw, settings["more"] * settings["tuples"], "x", settings["values"]),
    }
    runs = {name: Ran(settings.ablated or name, tables, settings) for name in _NAMES}
    shj, hybrid, grace, merge = runs.values()
    r, s = (np.bincount(tables[a][k], minlength=settings["values"]) for a, k in (("R", "a"), ("S", "x")))
    if len(grace.times) != int((r * s).sum()) or not all(one.answer == grace.answer for one in runs.values()):
        raise ExecutionError(f"{[len(one.times) for one in runs.values()]} results of {int((r * s).sum())}")
    figures = {
        "hybrid_early_share": hybrid.early,
        "shj_first_share": shj.times[0] / shj.read_until,
        "late_share": 1 - max(grace.early, merge.early),
        "hybrid_over_grace_written": hybrid.written / max(1, grace.written),
        "phased": grace.phased and merge.phased,
        "most_returned": max(one.returned / max(1, one.written) for one in (grace, merge)),
        "shj_over_grace_returned": shj.returned / max(1, grace.returned),
        "merge_order": merge.order,
        "other_order": max(abs(each.order) for each in (shj, hybrid, grace)),
    }
    label = "MB; share of results"
    return Outcome([over_time(_NAMES[name], one.curves, label) for name, one in runs.items()], figures)


def _table(draw: np.random.Generator, tuples: int, key: str, values: int) -> pa.Table:
    keys = draw.integers(0, values, tuples)
    return pa.table({"key": pa.array(range(tuples), INT), key: pa.array(keys, INT)})
