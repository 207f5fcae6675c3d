"""A sample of the eddy's law on Spark: one cell and many, every architecture, give DuckDB's multiset."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from millrace.options import Options
from millrace.parquet.parquet import open_table
from millrace.spark.block import Block, ParquetInput
from millrace.spark.execute import execute
from tests.engine.eddy.oracle import Case, cases, cases_beside, multiset

SETTINGS = (
    Options(placement="hypercube", cells=1),
    Options(placement="hypercube", cells=4, batch_size=3, policy="random"),
    Options(placement="auto", cells=2, batch_size=2),
    Options(architecture="stems", placement="hypercube", cells=4, online=True, policy="rank", batch_size=1),
    Options(architecture="joins", placement="hypercube", cells=1, online=True, policy="random"),
    Options(architecture="stairs", cells=3, online=True, migration="eager", batch_size=2, reoptimize_every=2),
    Options(architecture="static", placement="hypercube", cells=2),
    Options(memory_budget=50_000, placement="hypercube", cells=2, batch_size=3),
)
NUMBERS = itertools.count()


@pytest.mark.slow
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cases(max_relations=4) | cases_beside())
def test_one_cell_and_many_cells_give_the_oracles_rows(spark, tmp_path: Path, case: Case) -> None:
    """Random graphs and keys through real files and real tasks, in every placement."""
    inputs = {}
    for alias, table in case.tables.items():
        path = tmp_path / f"{alias}-{next(NUMBERS)}.parquet"
        pq.write_table(table, path, row_group_size=3)
        inputs[alias] = ParquetInput(open_table(path), tuple(table.schema.names))
    expected = case.expected()
    for options in SETTINGS:
        if case.spec.beside and options.memory_budget:
            continue  # refused
        frame = execute(spark, Block("b", case.spec, inputs), options).frame
        rows = frame.toArrow()
        if case.spec.count_only:
            count = sum(value for value in rows["__count"].to_pylist() if value is not None)
            assert count == sum(next(iter(key)) for key in expected), (options, case.sql())
        else:
            assert multiset(rows.cast(case.spec.output_schema)) == expected, (options, case.sql())
