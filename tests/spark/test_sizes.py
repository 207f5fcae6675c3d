"""What cells are told of relations' sizes, against what comes to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace
from millrace.engine.eddy.run import Run
from millrace.engine.stairs.state import StairState
from millrace.options import Options
from millrace.spark import execute as execution
from millrace.spark.block import Block, FrameInput
from millrace.spark.task_inputs import with_sizes
from tests.gate import sampled
from tests.sql.small_tables import write

ROWS = {"r": 2000, "s": 8000, "t": 4000}
KEYS = 500
HALF = KEYS // 2
INT = pa.int64()
HASHED = {"placement": "hypercube", "cells": 4, "transfer": False}
IN_PLACE = {"placement": "in_place", "cells": 4, "transfer": False}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """R.a = S.a and S.b = T.b; keys are uniform, and so is v, which is filtered. S has eight row groups."""
    draw, made = np.random.default_rng(0), {}
    for alias, names in {"r": "av", "s": "abv", "t": "bv"}.items():
        made[alias] = pa.table({name: pa.array(draw.integers(0, KEYS, ROWS[alias]), INT) for name in names})
    return write(tmp_path_factory.mktemp("sizes"), made, 1000)


def block_of(spark, tables, filtered: str = "", frames: str = "") -> Block:
    """The block of a query with filters, some of whose relations are DataFrames."""
    where = " AND ".join(["r.a = s.a", "s.b = t.b", *(f"{alias}.v < {HALF}" for alias in filtered)])
    text = f"SELECT count(*) FROM r, s, t WHERE {where}"
    (planned,) = millrace.query(text, spark=spark, tables=tables).blocks
    inputs = dict(planned.inputs)
    for alias in frames:
        frame = spark.read.parquet(tables[alias])
        inputs[alias] = FrameInput(frame.drop("v"), 8 * len(frame.columns) * ROWS[alias])
    return Block("b", planned.join, inputs)


@pytest.fixture
def tasks(monkeypatch):
    made = []
    task = execution.EddyTask

    def noted(**given):
        made.append(task(**given))
        return made[-1]

    monkeypatch.setattr(execution, "EddyTask", noted)
    return made


CASES = [
    ("rs", "", HASHED, ""),
    ("", "", HASHED, ""),
    ("st", "", IN_PLACE, "r"),
    ("", "", IN_PLACE, "rst"),
    ("t", "", {**HASHED, "cells": 1}, "rs"),
    ("", "", {**HASHED, "cells": 1}, "rst"),
    ("", "r", IN_PLACE, "st"),
    ("", "rst", HASHED, ""),
]


@pytest.mark.parametrize(("filtered", "frames", "options", "exact"), sampled(CASES))
def test_a_cell_is_told_what_comes_to_it(spark, tables, tasks, filtered, frames, options, exact):
    """Dealt by keys, copied, or read by the cell itself; only what is certain is told as certain."""
    run = execution.execute(spark, block_of(spark, tables, filtered, frames), Options.of(options))
    run.frame.collect()
    cells = [figures for figures in run.reports.figures() if figures.cell >= 0]
    assert len(cells) == options["cells"]
    for figures in cells:
        told = with_sizes(tasks[-1].join, tasks[-1].scans, figures.cell)
        came = {m.name: m.tuples_out for m in figures.modules if m.action == "scan"}
        for relation in told.relations:
            rows = came[f"Scan({relation.alias})"]
            assert relation.guessed == (relation.alias not in exact)
            if relation.alias in exact:
                assert relation.rows == rows
            else:
                assert relation.rows == pytest.approx(rows, rel=0.2)
            assert relation.passing == pytest.approx(0.5 if relation.alias in filtered else 1.0, rel=0.02)


@pytest.mark.parametrize("guessed", [True, False])
def test_a_migration_knows_whether_the_end_is_certain(spark, tables, monkeypatch, guessed):
    """Only there it may cost much."""
    join = block_of(spark, tables).join
    known = [replace(r, rows=ROWS[r.alias], guessed=guessed) for r in join.relations]
    changes, at_stasis = [], StairState.at_stasis

    def noting(state):
        changes.append(state._change(1, 1.0, 1.0))
        return at_stasis(state)

    monkeypatch.setattr(StairState, "at_stasis", noting)
    batches = {r.alias: pq.read_table(tables[r.alias], columns=r.schema.names).to_batches(100) for r in known}
    settings = Options(architecture="stairs", online=True, batch_size=100, transfer=False)
    list(Run(replace(join, relations=tuple(known)), batches, settings).run())
    assert {change.guessed for change in changes if change.remaining} == {guessed}
