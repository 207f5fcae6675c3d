"""Ranges of keys: what relations that were read spare of reading others; no row is lost by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.engine.arrivals.key_ranges import KeyRanges
from millrace.engine.spill.run_of import run_of
from millrace.limits.clock import VirtualClock
from millrace.options import ALGORITHMS, Options
from millrace.parquet.parquet import open_table, splits
from millrace.parquet.reading import read_splits
from tests.engine.eddy.blocks import Rows, block
from tests.engine.eddy.oracle import Case, multiset


def scanned(case: Case, folder: str, rows: int, ranges: KeyRanges) -> dict[str, Iterator[pa.RecordBatch]]:
    """Return scans of files of the case's tables, in row groups of so many rows."""
    sources = {}
    for relation in case.spec.relations:
        path = Path(folder) / f"{relation.alias}.parquet"
        pq.write_table(case.tables[relation.alias], path, row_group_size=rows)
        table, names = open_table(path), tuple(relation.schema.names)
        assert table.unsupported is None
        keeps = partial(ranges.keeps, relation.alias)
        sources[relation.alias] = read_splits(splits(table), names, batch_size=4, keeps=keeps)
    return sources


def joined(case: Case, rows: int, **settings: object) -> tuple[Rows, dict[str, tuple[int, int]]]:
    """Join files; return the rows, and of each relation the row groups looked at and read."""
    ranges = KeyRanges()
    with TemporaryDirectory() as folder:
        sources = scanned(case, folder, rows, ranges)
        eddy = run_of(case.spec, sources, Options(**settings), clock=VirtualClock(), ranges=ranges)
        found = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    return found, {each.name: (each.tuples_in, each.tuples_out) for each in ranges.figures()}


def clustered() -> Case:
    """Return a block of a table in the order of its days, and few days."""
    days = pa.array([n // 10 for n in range(400)], pa.int64())
    sales = pa.table({"day": days, "item": pa.array([n % 7 for n in range(400)], pa.int64())})
    dates = pa.table({"day": pa.array([11, 12, None], pa.int64())})
    items = pa.table({"item": pa.array(range(7), pa.int64())})
    return block(
        {"sales": sales, "dates": dates, "items": items}, ["sales.day = dates.day", "sales.item = items.item"]
    )


def test_row_groups_out_of_range_are_not_read() -> None:
    """Two days of forty, in row groups of ten; without transfers, or side by side, all are."""
    case = clustered()
    for options, read in (
        ({}, 2),
        ({"architecture": "stairs"}, 2),
        *(
            ({"memory_budget": budget, "algorithm": algorithm, "batch_size": 16}, 2)
            for budget in (2_000, 1 << 30)
            for algorithm in ALGORITHMS
        ),
        ({"transfer": False}, 40),
        ({"online": True}, 40),
    ):
        rows, groups = joined(case, 10, **options)
        assert rows == case.expected() and rows.total() == 20
        assert groups.get("RowGroups(sales)", (40, 40)) == (40, read)


def test_keys_that_python_does_not_have_are_keys() -> None:
    """Dates and times beyond its calendar, and bytes that are no UTF-8, match like any others."""
    days = [-1_000_000, 5, 3_000_000]
    texts = pa.array([b"", b"a\xff", b"\xff\xfe\x80"]).view(pa.string())
    for keys in (
        pa.array(days, pa.int32()).view(pa.date32()),
        pa.array([day * 86_400_000_000 for day in days]).view(pa.timestamp("us", "UTC")),
        pa.array([day * 86_400_000_000 for day in days]).view(pa.timestamp("us")),
        texts,
    ):
        for built in ([0, 1, 2], [0], [1, 2], [2]):
            large = pa.table({"k": keys.take([n // 10 for n in range(30)]), "n": range(30)})
            case = block({"a": large, "b": pa.table({"k": keys.take(built)})}, ["a.k = b.k"])
            output = tuple(each for each in case.spec.output if each.name == "a_n")
            case = Case(replace(case.spec, output=output), case.tables)
            assert joined(case, 10)[0] == dict.fromkeys(((n,) for n in range(30) if n // 10 in built), 1)
