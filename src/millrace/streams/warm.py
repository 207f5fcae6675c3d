"""The cells that a worker process keeps in memory between micro-batches.

Spark gives a task to any process that is free, so this is a hope and no promise: a cell found here may be
some micro-batches behind, and then catches up from the log; one that came of an attempt which failed is of no
use.
"""

from __future__ import annotations

from collections import OrderedDict

from millrace.spark.worker import look_again
from millrace.streams.cell import Cell
from millrace.streams.log import Head

_CELLS: OrderedDict[tuple[str, int], Cell] = OrderedDict()


def take(plan: str, cell: int, head: Head) -> Cell | None:
    """Take a cell out that can go on; None if there is none. Who fails with it does not put it back.

    Args:
        plan: The plan's name.
        cell: The cell's number.
        head: Of the cell's log, which a state has to lead to.
    """
    found = _CELLS.pop((plan, cell), None)
    if found is None or (found.follows(head) and not found.is_worn):
        return found
    look_again()
    return None


def put(plan: str, cell: int, state: Cell, budget: int) -> None:
    """Keep a cell, and let go of others that have not been used for long.

    Args:
        plan: The plan's name.
        cell: The cell's number.
        state: The cell.
        budget: Bytes that cells kept here may take together.
    """
    _CELLS[plan, cell] = state
    kept = len(_CELLS)
    while len(_CELLS) > 1 and sum(each.nbytes for each in _CELLS.values()) > budget:
        _CELLS.popitem(last=False)
    if state.nbytes > budget:
        _CELLS.clear()
    if len(_CELLS) < kept:
        look_again()
