"""The block's sources, each of which is read once, in batches that are checked and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millrace.engine.spill.chunks import Chunk, Extent
from millrace.engine.spill.work import Setting, batches, fitting_batches
from millrace.engine.tuples import keyed
from millrace.limits.clock import Clock

Ends = tuple[pa.Scalar, pa.Scalar]


class Reading:
    """Reads sources.

    A relation that has the same tuples as another (a self-join) has no source of its own: the first of them
    to be read leaves the tuples in a file for the others, which join them as tuples of their own.

    Args:
        setting: The run.
        sources: By relation number.
        shared: For relations without a source, the one that they share it with.
        clock: What times are measured by.
        ended: Told of each relation that has been read to its end, and of the ends of its columns, so that
            less is read of others (:meth:`millrace.engine.eddy.transfer.KeyRanges.ended`).
    """

    def __init__(
        self,
        setting: Setting,
        sources: Mapping[int, Iterator[pa.RecordBatch]],
        shared: Mapping[int, int],
        clock: Clock,
        ended: Callable[[int, Sequence[str], Callable[[str], Ends | None]], None] | None = None,
    ) -> None:
        self._setting = setting
        self._sources = sources
        self._shared = shared
        self._clock = clock
        self._ended = ended
        self._copies: dict[int, list[Chunk]] = {}

    def raw(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the tuples of a source in batches of ``Options.batch_size`` tuples at most."""
        lead = self._shared.get(relation, relation)
        if lead in self._copies:
            return batches(self._setting, relation, self._copies[lead])
        source = self._scan(relation, self._sources[lead])
        return self._copied(lead, source) if lead in self._shared.values() else source

    def keyed(self, relation: int) -> Iterator[pa.RecordBatch]:
        """Yield the same without tuples that have a null key, in batches that buffers have room for."""
        layout = self._setting.layouts[relation]
        for batch in self.raw(relation):
            fitting, _ = keyed(batch, layout.keys, layout.same)
            yield from fitting_batches(self._setting, fitting)

    def _scan(self, relation: int, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        size = self._setting.options.batch_size
        keys = (
            {} if self._ended is None else dict.fromkeys(k.name for k in self._setting.layouts[relation].keys)
        )
        ends: dict[str, Ends | None] = {}
        while True:
            began = self._clock.now()
            batch = next(source, None)
            rows = 0 if batch is None else batch.num_rows
            self._setting.folder.tally.scan(relation, rows, self._clock.now() - began)
            if batch is None:
                if self._ended is not None:
                    self._ended(relation, self._setting.spec.aliases, ends.get)
                return
            for key in keys:
                ends[key] = _widen(ends.get(key), batch.column(key))
            for low in range(0, rows, size):
                piece = batch.slice(low, size)
                self._setting.check(relation, piece)
                yield piece

    def _copied(self, lead: int, source: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = self._setting.folder.writer(lead, self._setting.spec.relations[lead].schema)
        copy = []
        for batch in source:
            copy.append(Chunk(Extent(batch.num_rows, int(batch.nbytes)), writer.write(batch)))
            yield batch
        self._setting.folder.finish(writer)
        self._copies[lead] = copy


def _widen(ends: Ends | None, column: pa.Array) -> Ends | None:
    """Return the least and the greatest value of a column and of what came before it.

    None where there is none, or the type has no order.
    """
    before = [pa.repeat(end, 1) for end in ends or ()]
    try:
        found = pc.min_max(pa.chunked_array([*before, column]))
    except pa.ArrowException:
        return None
    return (found["min"], found["max"]) if found["min"].is_valid else None
