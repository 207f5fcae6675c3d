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

from millrace.clock import VirtualClock
from millrace.errors import ExecutionError
from millrace.experiments.experiment import Curve, Outcome, Settings
from millrace.experiments.lab.block import block
from millrace.experiments.stems.watched import INT, over_time
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
    spec = block(tables, "R.a = S.x", all_columns=True)
    ran: dict[str, Ran] = {}
    for place, name in enumerate(_NAMES):
        ran[name] = Ran(settings.ablated or name, spec, tables, settings)
        settings.progress((place + 1) / len(_NAMES))
    shj, hybrid, grace, merge = (ran[name] for name in _NAMES)
    if len(grace.times) != _expected(tables) or not all(
        one.answer.equals(grace.answer) for one in ran.values()
    ):
        raise ExecutionError(f"{[len(one.times) for one in ran.values()]} results of {_expected(tables)}")
    return Outcome(
        tuple(over_time(title, ran[name].curves(), "MB; share of results") for name, title in _NAMES.items()),
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
        }
        | {
            "shj_first_share": shj.times[0] / shj.read_until,
            "late_share": 1 - max(grace.early, merge.early),
            "hybrid_over_grace_written": hybrid.written / max(1, grace.written),
            "phased": float(_phased(grace) and _phased(merge)),
            "most_returned": max(one.returned / max(1, one.written) for one in (grace, merge)),
            "shj_over_grace_returned": shj.returned / max(1, grace.returned),
            "merge_order": merge.order,
            "other_order": max(abs(each.order) for each in (shj, hybrid, grace)),
        },
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
