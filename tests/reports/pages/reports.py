"""Reports to draw: of real runs in this process, and made up ones that are large or hostile."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from millrace.engine.eddy.run import Run
from millrace.engine.figures import CellFigures, Change, ModuleFigures, ModuleTrace, OrderTrace, Shift
from millrace.limits.progress import LookupProgress
from millrace.options import Options
from millrace.reports.planned import BlockShape, Planned
from millrace.reports.run_report import RunReport
from tests.engine.eddy.blocks import block


@cache
def drifting(**options: object) -> CellFigures:
    """Return the figures of a star join in which one dimension stops to match half-way; it is run once."""
    rng, rows = np.random.default_rng(1), 60_000
    late = np.arange(rows) >= rows // 2
    tables = {
        "l": pa.table(
            {
                "k": np.where(late, rng.integers(0, 1000, rows), rng.integers(0, 60, rows)),
                "j": np.where(late, rng.integers(0, 60, rows), rng.integers(0, 1000, rows)),
            }
        ),
        "o": pa.table({"k": np.arange(50)}),
        "c": pa.table({"j": np.arange(50)}),
    }
    case = block(tables, ["l.k = o.k", "l.j = c.j"])
    settings = Options.of({"transfer": False, "batch_size": 512, "reoptimize_every": 2048, **options})
    sources = {name: table.to_batches(max_chunksize=512) for name, table in tables.items()}
    eddy = Run(case.spec, sources, settings)
    for _ in eddy.run():
        pass
    return eddy.figures()


SHAPE = BlockShape(("l", "o", "c"), (("l", "o", "l.k = o.k"), ("l", "c", "l.j = c.j")))


def filtered(cells: int = 2) -> RunReport:
    """Return the report of a filter by two predicates over 1,000 rows a cell."""
    modules = (
        ModuleFigures("Scan(rows)", "scan", 1000, 1000, 1, 0.0),
        ModuleFigures("Predicate(a(x))", "select", 1000, 100, 4, 1.0, evaluated=1000),
        ModuleFigures("Predicate(b(x))", "select", 100, 50, 4, 0.5, evaluated=100),
    )
    changes = (
        Change(0, "b → a"),
        Change(250, "a → b", (Shift("b", (None, 0.5), (None, 1e-3)), Shift("a", (0.5, 0.1), (1e-3, 2e-3)))),
    )
    figures = [
        CellFigures(
            number,
            1.5,
            modules,
            (("rows → a → b", 1000),),
            traces=(OrderTrace("rows", 0, 1000, changes),),
            readings=(ModuleTrace("Predicate(a(x))", "select", ((0, 0, 0, 0.0), (1000, 1000, 100, 1.0))),),
            output_tuples=50,
        )
        for number in range(cells)
    ]
    return RunReport({"filter": figures})


@cache
def large() -> RunReport:
    """Return a report of 1,200 cells, each with as many changes as an eddy keeps."""
    orders = [f"o → c → {number}" for number in range(40)]
    shifts = tuple(Shift(name, (0.123456789, 0.987654321), (1.2e-7, 3.4e-7)) for name in "oc")
    changes = tuple(Change(1000 * number, orders[number % 40], shifts) for number in range(128))
    whole = replace(
        drifting(),
        orders=tuple((order, 10) for order in orders),
        traces=(OrderTrace("l", 0, 128_000, changes),),
    )
    cells = [replace(whole, cell=number) for number in range(100)]
    blocks = {f"b{number}": cells for number in range(12)}
    return RunReport(blocks, Planned(dict.fromkeys(blocks, SHAPE), ("a reason " * 100,) * 50))


HOSTILE = '</style></script><script>alert("x")</script><img src=x onerror=alert(1)>&amp;\'"{{ 7*7 }}'


def hostile() -> RunReport:
    """Return a report of a join, a filter and a lookup, every name of which tries to leave its place."""
    lookup = LookupProgress("l", 10, 5, 0, 5, 0, 10, 5, 1.0, 1.0, (("o", 5),), "c")
    planned = Planned({"l": SHAPE}, ("o",), {"c": "o"}, query="c")
    report = RunReport({"l": [drifting()], "b": filtered().blocks["filter"]}, planned, (lookup,))
    names = re.compile(r"\b[locab]\b")
    return RunReport.from_json(names.sub(lambda name: json.dumps(HOSTILE + name[0])[1:-1], report.to_json()))


@cache
def joined() -> RunReport:
    """Return the report of a join in two cells, in which the eddies change their order."""
    cells = [drifting(), drifting(seed=1)]
    return RunReport({"b0": cells}, Planned({"b0": SHAPE}, ("a reason",), {"cells": 2}))


REPORTS = {
    "joined": joined,
    "stairs": lambda: RunReport({"b0": [drifting(architecture="stairs", online=True)]}),
    "filtered": filtered,
    "large": large,
    "hostile": hostile,
    "empty": RunReport,
    "cell without figures": lambda: RunReport({"b0": [], "b1": [CellFigures(0, 0.0)]}),
}
"""Reports of every kind."""


@cache
def drawn(name: str) -> str:
    """Return the page of a report of ``REPORTS``, drawn once."""
    return REPORTS[name]().to_html()
