"""One way to run blocks under a memory budget."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from millrace.engine.spill.spilling import SpillingEddy
from millrace.limits.clock import VirtualClock
from millrace.options import Options
from tests.engine.eddy.blocks import batches
from tests.engine.eddy.oracle import Case, multiset


def spilled(
    case: Case, options: Options, *, chunk: int = 4, **arguments: Any
) -> tuple[Counter[tuple[Any, ...]], SpillingEddy]:
    """Run the block; return its rows and the eddy, for its figures."""
    eddy = SpillingEddy(case.spec, batches(case, chunk), options, clock=VirtualClock(), **arguments)
    rows = multiset(pa.Table.from_batches(list(eddy.run()), case.spec.output_schema))
    return rows, eddy


def left(folder: Path) -> list[str]:
    """Return what is in a folder."""
    return sorted(str(path) for path in folder.rglob("*"))
