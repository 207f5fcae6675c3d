"""R.a = S.x by four join algorithms, all of them the same eddy over SteMs under one memory budget.

Section 3.1 ("Simulating and Hybridizing Non-Pipelined Join Algorithms"): which algorithm it is depends on
how SteMs cluster what is built before they bounce it back, and on when probes follow builds. What tells them
apart is their input and output: what goes to disk when, what comes back, and when results do. Declared costs:
reading a source, and bytes to and from disk; work in memory is taken to cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from millrace.clock import VirtualClock
from millrace.experiments.experiment import Check, Curve, Experiment, Outcome, Panel, Parameter, Settings
from millrace.experiments.stems.watched import INT, block_of
from millrace.options import Options
from millrace.spec import JoinSpec
from millrace.spill import SpillingEddy
from millrace.spill.tally import Tally

_NAMES = {
    "shj": "symmetric hash join",
    "hybrid": "hybrid hash join",
    "grace": "Grace hash join",
    "sort_merge": "sort-merge join",
}


class Disk(Tally):
    """The books of spilling, and a clock that goes on with what is written and read.

    Attributes:
        moved: Moment, bytes written so far, bytes read back so far.
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
    """One algorithm's run, and its figures over time.

    Args:
        algorithm: As in the options.
        spec: The block.
        tables: Its tables.
        settings: Of the experiment.
    """

    def __init__(
        self, algorithm: str, spec: JoinSpec, tables: Mapping[str, pa.Table], settings: Settings
    ) -> None:
        clock = VirtualClock()
        self.disk = Disk(spec.aliases, clock, 1e6 * settings["disk"])
        self.read_until = 0.0
        size = 64

        def source(table: pa.Table) -> Iterator[pa.RecordBatch]:
            for batch in table.combine_chunks().to_batches(max_chunksize=size):
                clock.advance(batch.num_rows / settings["rate"])
                self.read_until = clock.now()
                yield batch

        options = Options(
            algorithm=algorithm,
            memory_budget=settings.whole("budget") * 1000,
            online=algorithm == "shj",
            batch_size=size,
        )
        eddy = SpillingEddy(
            spec, {alias: source(table) for alias, table in tables.items()}, options, clock=clock
        )
        eddy.tally = self.disk
        times: list[float] = []
        found = []
        for batch in eddy.run():
            times += [clock.now()] * batch.num_rows
            found.append(batch)
        self.times = np.array(times)
        self.table = pa.Table.from_batches(found, spec.output_schema)
        self.end = clock.now()

    @property
    def answer(self) -> pa.Table:
        """The results in an order of their own."""
        return self.table.sort_by([(name, "ascending") for name in self.table.column_names]).combine_chunks()

    @property
    def written(self) -> int:
        """Bytes that went to disk."""
        return self.disk.bytes_written

    @property
    def returned(self) -> int:
        """Bytes that came back."""
        return self.disk.bytes_read

    @property
    def early(self) -> float:
        """Share of the results that came before the sources had been read."""
        return float((self.times < self.read_until).mean())

    @property
    def order(self) -> float:
        """Correlation between the place of a result and its key: 1 if they come by key, about 0 if not."""
        return float(np.corrcoef(np.arange(self.table.num_rows), self.table["R_a"].to_numpy())[0, 1])

    def curves(self) -> tuple[Curve, Curve, Curve]:
        """Return results, and megabytes to and from disk, over time."""
        when, out, back = (np.array(column) for column in zip(*self.disk.moved, strict=True))
        results = np.arange(1, len(self.times) + 1) / max(1, len(self.times))
        thinned = slice(None, None, max(1, len(self.times) // 500))
        name = "share of results"
        return (
            Curve("written (MB)", (*when, self.end), (*(out / 1e6), self.written / 1e6)),
            Curve("read back (MB)", (*when, self.end), (*(back / 1e6), self.returned / 1e6)),
            Curve(name, (0, *self.times[thinned], self.end), (0, *results[thinned], 1)),
        )


def run(settings: Settings) -> Outcome:
    """Run the join by each algorithm."""
    draw = np.random.default_rng(settings.seed)
    tuples, values = settings.whole("tuples"), settings.whole("values")
    tables = {
        "R": _table(draw, tuples, "a", values),
        "S": _table(draw, settings.whole("more") * tuples, "x", values),
    }
    spec = block_of(tables, "R.a = S.x")
    ran: dict[str, Ran] = {}
    for place, name in enumerate(_NAMES):
        ran[name] = Ran("grace" if settings.ablated else name, spec, tables, settings)
        settings.progress((place + 1) / len(_NAMES))
    shj, hybrid, grace, merge = (ran[name] for name in _NAMES)
    joined = _expected(tables)
    return Outcome(
        tuple(
            Panel(title, "time (s)", "MB; share of results", ran[name].curves(), kind="steps")
            for name, title in _NAMES.items()
        ),
        {
            f"{name}_{figure}": value
            for name, one in ran.items()
            for figure, value in (
                ("written", one.written),
                ("returned", one.returned),
                ("first_result", float(one.times[0])),
                ("early_share", one.early),
                ("end", one.end),
            )
        },
        (
            Check(
                "all four return the same answer",
                all(one.answer.equals(grace.answer) for one in ran.values()) and len(grace.times) == joined,
                f"{[len(one.times) for one in ran.values()]} results, {joined} expected",
            ),
            # A result needs a tuple of each side, so from the second batch on there can be some; they are
            # given out 64 at a time.
            Check(
                "the symmetric hash join returns first results within 10 % of the time of reading",
                shj.times[0] <= 0.1 * shj.read_until,
                f"at {shj.times[0] / shj.read_until:.1%}",
            ),
            Check(
                "hybrid hash returns 10 % of the results while it reads, Grace and sort-merge none",
                hybrid.early >= 0.1 and grace.early == merge.early == 0,
                f"{hybrid.early:.0%}, {grace.early:.0%} and {merge.early:.0%}",
            ),
            # What is kept in memory need not be written; buffers and file headers are in the noise.
            Check(
                "hybrid hash writes less than 90 % of what Grace does, for it keeps some partitions",
                0 < hybrid.written <= 0.9 * grace.written,
                f"{hybrid.written / grace.written:.0%}",
            ),
            # Batches of a sorted run that belong to two ranges are read for both.
            Check(
                "Grace and sort-merge write all before they read any of it, and read it once, within 10 %",
                all(_phased(one) and one.returned <= 1.1 * one.written for one in (grace, merge)),
                f"read {grace.returned / grace.written:.2f} and {merge.returned / merge.written:.2f} "
                "times what was written",
            ),
            # It goes over what came early and late, in combinations: some of it several times.
            Check(
                "the symmetric hash join reads more than Grace does: the price of early results",
                shj.returned > 1.05 * grace.returned,
                f"{shj.returned / grace.returned:.2f} times as much",
            ),
            # Within a range of keys there is no order, from range to range there is: with k equal ranges
            # the correlation is 1 - 1/k², and at least three are needed here.
            Check(
                "sort-merge returns results by key, the others do not",
                merge.order >= 0.85 and max(abs(each.order) for each in (shj, hybrid, grace)) <= 0.3,
                f"correlation of place and key {merge.order:.2f}; {shj.order:.2f}, {hybrid.order:.2f} and "
                f"{grace.order:.2f}",
            ),
        ),
    )


def _table(draw: np.random.Generator, tuples: int, key: str, values: int) -> pa.Table:
    keys = draw.integers(0, values, tuples)
    return pa.table({"key": pa.array(range(tuples), INT), key: pa.array(keys, INT)})


def _expected(tables: Mapping[str, pa.Table]) -> int:
    """Return how many results there are: of each value, so many times so many."""
    r, s = (np.bincount(tables[a][k].to_numpy(), minlength=1) for a, k in (("R", "a"), ("S", "x")))
    least = min(len(r), len(s))
    return int((r[:least] * s[:least]).sum())


def _phased(one: Ran) -> bool:
    """Whether nothing is read before the last byte is written."""
    return all(out == one.written for _, out, back in one.disk.moved if back)


EXPERIMENT = Experiment(
    id="stems-join-algorithms",
    title="four join algorithms from the same SteMs",
    source="Raman, Deshpande & Hellerstein 2003, section 3.1 (Simulating and Hybridizing Non-Pipelined Join "
    "Algorithms)",
    claim=(
        "Routed through the same SteMs, the join is a symmetric hash join, a hybrid hash join, a Grace hash "
        "join or a sort-merge join, by how tuples are clustered before they probe: the same answer, and each "
        "algorithm's own pattern of input, output and results."
    ),
    mechanism="clustering: every run clusters as a Grace hash join does",
    parameters=(
        Parameter("tuples", 8000, 1000, 1_000_000, "tuples", "in R"),
        Parameter("more", 2, 1, 20, "", "times as many tuples in S"),
        Parameter("values", 8000, 10, 1_000_000, "values", "of the join columns"),
        Parameter("budget", 200, 20, 1_000_000, "kB", "of memory for a run"),
        Parameter("rate", 10_000.0, 1.0, 1e9, "tuples/s", "that sources are read at"),
        Parameter("disk", 0.5, 0.001, 1e6, "MB/s", "that files are written and read at"),
    ),
    run=run,
)
