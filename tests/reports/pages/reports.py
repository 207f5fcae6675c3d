"""Reports to draw: of real runs in this process, and made up ones that are large or hostile."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from millrace.engine.figures import (
    CellFigures,
    Change,
    JoinFigures,
    ModuleFigures,
    ModuleTrace,
    OrderTrace,
    Shift,
    StateFigures,
)
from millrace.engine.runs.eddy_run import EddyRun
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
    eddy = EddyRun(case.spec, sources, settings)
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
    """Return a report of 100 cells, each with as many changes and readings as an eddy keeps."""
    names = [f"n{number}" for number in range(9)]
    shape = BlockShape(tuple(names), tuple((names[0], n, f"n0.k = {n}.k") for n in names[1:]))
    orders = [" → ".join(np.random.default_rng(seed).permutation(names[1:])) for seed in range(40)]
    shifts = tuple(Shift(name, (0.123456789, 0.987654321), (1.2e-7, 3.4e-7)) for name in names[1:3])
    cells = [
        CellFigures(
            number,
            1.0,
            tuple(ModuleFigures(f"SteM({n})", "probe", 10**9, 10**9, 10**6, 0.1) for n in names),
            tuple((order, 10) for order in orders),
            tuples_routed=10**9,
            traces=(
                OrderTrace(
                    "n0", 0, 128_000, tuple(Change(i * 1000, orders[i % 40], shifts) for i in range(128))
                ),
            ),
            readings=tuple(
                ModuleTrace(f"SteM({n})", "probe", tuple((i, i, i, i / 7) for i in range(40))) for n in names
            ),
            state=tuple(StateFigures(f"SteM({n})", 10**9, 10**9) for n in names),
            joins=tuple(JoinFigures((names[0],), n, 10**9, 10**9) for n in names[1:]),
        )
        for number in range(100)
    ]
    blocks = {f"b{number}": cells for number in range(12)}
    return RunReport(blocks, Planned(dict.fromkeys(blocks, shape), ("a reason " * 100,) * 50))


HOSTILE = '</style></script><script>alert("x")</script><img src=x onerror=alert(1)>&amp;\'"{{ 7*7 }}'


def hostile() -> RunReport:
    """Return a report every name of which tries to leave its place."""
    other = HOSTILE + "2"
    order = f"{HOSTILE} → {other}"
    cell = CellFigures(
        0,
        1.0,
        tuple(
            ModuleFigures(f"Scan({HOSTILE})" if action == "scan" else HOSTILE, action, 10, 5, 1, 1.0, 10)
            for action in ("scan", "select", "probe")
        ),
        ((order, 10),),
        traces=(
            OrderTrace(
                HOSTILE,
                0,
                10,
                (Change(0, HOSTILE), Change(5, order, (Shift(HOSTILE, (0.1, 0.2), (0.1, 0.2)),))),
            ),
        ),
        readings=(ModuleTrace(HOSTILE, "probe", tuple((i, i, i, float(i)) for i in range(5))),),
        state=(StateFigures(HOSTILE, 1, 1),),
        joins=(JoinFigures((HOSTILE,), other, 1, 1),),
    )
    shape = BlockShape((HOSTILE, other), ((HOSTILE, other, HOSTILE),), (HOSTILE,))
    lookup = LookupProgress(HOSTILE, 10, 5, 0, 5, 0, 10, 5, 1.0, 1.0, ((HOSTILE, 5),), HOSTILE)
    planned = Planned({HOSTILE: shape}, (HOSTILE,), {HOSTILE: HOSTILE})
    return RunReport({HOSTILE: [cell]}, planned, (lookup,))


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
