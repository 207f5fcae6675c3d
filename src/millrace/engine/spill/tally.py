"""What spilling did: written, read, and joined; and the figures of all the run's eddies together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from millrace.engine.figures import CellFigures, JoinFigures, ModuleFigures
from millrace.engine.peak import peak_memory


@dataclass
class Flow:
    """Tuples, batches, bytes and seconds that went one way."""

    rows: int = 0
    batches: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def add(self, rows: int, size: int, seconds: float, batches: int = 1) -> None:
        """Book a batch."""
        self.rows += rows
        self.batches += batches
        self.bytes += size
        self.seconds += seconds


@dataclass
class Joins:
    """Joins of partitions: how many, base tuples into them, results out of them, and their time."""

    count: int = 0
    tuples_in: int = 0
    tuples_out: int = 0
    seconds: float = 0.0


@dataclass
class Tally:
    """Counts of one run.

    Attributes:
        aliases: The block's relations, by number.
        files: Spill files made (for ``sort_merge`` each sorted run is one).
        scanned: By relation: what came from its source. ``written`` and ``returned`` (read back)
            likewise, for spill files.
        in_memory: Joins of tuples that had stayed in memory, but for a streamed relation's.
        from_disk: Joins of tuples read back.
        splits_by_key: Pieces that were still too large and divided by another hash of a key.
        splits_by_rows: Pieces that no key divides, joined a part of one relation at a time.
    """

    aliases: Sequence[str]
    files: int = 0
    scanned: dict[int, Flow] = field(default_factory=dict)
    written: dict[int, Flow] = field(default_factory=dict)
    returned: dict[int, Flow] = field(default_factory=dict)
    in_memory: Joins = field(default_factory=Joins)
    from_disk: Joins = field(default_factory=Joins)
    splits_by_key: int = 0
    splits_by_rows: int = 0
    _eddies: CellFigures = field(default_factory=lambda: CellFigures(0, 0.0))

    @property
    def bytes_written(self) -> int:
        """Bytes that went to spill files."""
        return sum(flow.bytes for flow in self.written.values())

    @property
    def bytes_read(self) -> int:
        """Bytes that came back from spill files; a batch read twice counts twice."""
        return sum(flow.bytes for flow in self.returned.values())

    @property
    def results(self) -> int:
        """Result tuples so far."""
        return self._eddies.output_tuples

    def scan(self, relation: int, rows: int, seconds: float) -> None:
        """Book a batch of a source, or its end."""
        self.scanned.setdefault(relation, Flow()).add(rows, 0, seconds)

    def wrote(self, relation: int, rows: int, size: int, seconds: float) -> None:
        """Book a batch written."""
        self.written.setdefault(relation, Flow()).add(rows, size, seconds)

    def read(self, relation: int, rows: int, size: int, seconds: float) -> None:
        """Book a batch read back."""
        self.returned.setdefault(relation, Flow()).add(rows, size, seconds)

    def joined(self, figures: CellFigures, *, from_disk: bool) -> None:
        """Book an eddy that has ended."""
        joins = self.from_disk if from_disk else self.in_memory
        joins.count += 1
        joins.tuples_in += sum(m.tuples_in for m in figures.modules if m.action == "scan")
        joins.tuples_out += figures.output_tuples
        joins.seconds += figures.seconds
        self._eddies = _added(self._eddies, figures)

    def figures(self, cell: int, seconds: float) -> CellFigures:
        """Return everything as the figures of one cell."""
        scans = self._flows("Scan", "scan", self.scanned)
        spills = self._flows("Spill", "write", self.written) + self._flows("Spill", "read", self.returned)
        joins = tuple(
            ModuleFigures(name, "join", one.tuples_in, one.tuples_out, one.count, one.seconds)
            for name, one in (
                ("Partitions in memory", self.in_memory),
                ("Partitions from disk", self.from_disk),
            )
            if one.count and self.written
        )
        return replace(
            self._eddies,
            cell=cell,
            seconds=seconds,
            modules=(*scans, *spills, *joins, *self._eddies.modules),
            peak_bytes=peak_memory(),
            spilled_bytes=self.bytes_written,
            returned_bytes=self.bytes_read,
        )

    def _flows(self, name: str, action: str, flows: dict[int, Flow]) -> tuple[ModuleFigures, ...]:
        return tuple(
            ModuleFigures(
                f"{name}({self.aliases[relation]})",
                action,
                flow.rows,
                flow.rows,
                flow.batches,
                flow.seconds,
                bytes=flow.bytes,
            )
            for relation, flow in sorted(flows.items())
        )


def _added(left: CellFigures, right: CellFigures) -> CellFigures:
    """Return the sums; scans of single eddies are left out, for sources are booked where they are read."""
    modules = {(m.name, m.action): m for m in left.modules}
    for one in right.modules:
        if one.action == "scan":
            continue
        old = modules.get((one.name, one.action), ModuleFigures(one.name, one.action, 0, 0, 0, 0.0))
        modules[one.name, one.action] = replace(
            old,
            tuples_in=old.tuples_in + one.tuples_in,
            tuples_out=old.tuples_out + one.tuples_out,
            calls=old.calls + one.calls,
            seconds=old.seconds + one.seconds,
            evaluated=old.evaluated + one.evaluated,
        )
    orders = dict(left.orders)
    for order, tuples in right.orders:
        orders[order] = orders.get(order, 0) + tuples
    return replace(
        left,
        modules=tuple(modules.values()),
        orders=tuple(sorted(orders.items(), key=lambda item: -item[1])),
        tuples_routed=left.tuples_routed + right.tuples_routed,
        intermediate_tuples=left.intermediate_tuples + right.intermediate_tuples,
        output_tuples=left.output_tuples + right.output_tuples,
        # Each join ends before the next one begins: the largest tells what was held at a time.
        state=max(left.state, right.state, key=lambda state: sum(s.nbytes for s in state)),
        peak_state=max(left.peak_state, right.peak_state),
        migrated_tuples=left.migrated_tuples + right.migrated_tuples,
        recomputed_tuples=left.recomputed_tuples + right.recomputed_tuples,
        # Where orders changed within later partitions says nothing in tuples of the whole run.
        traces=left.traces or right.traces,
        readings=left.readings or right.readings,
        joins=_joins(left.joins, right.joins),
    )


def _joins(left: tuple[JoinFigures, ...], right: tuple[JoinFigures, ...]) -> tuple[JoinFigures, ...]:
    counts: dict[tuple[tuple[str, ...], str], JoinFigures] = {}
    for one in (*left, *right):
        old = counts.get((one.span, one.name), JoinFigures(one.span, one.name, 0, 0))
        both = old.tuples_in + one.tuples_in, old.tuples_out + one.tuples_out
        counts[one.span, one.name] = JoinFigures(one.span, one.name, *both)
    return tuple(counts.values())
