"""The cells that a worker process keeps in memory between micro-batches.

Spark gives a task to any process that is free, so this is a hope and no promise: a cell found here may be
some micro-batches behind, and then catches up from the log; one that came of an attempt which failed is of no
use.
"""

from __future__ import annotations

from collections import OrderedDict

from pyspark import TaskContext

from millrace.spark.worker import look_again
from millrace.streams.block_log import Head
from millrace.streams.cell import Cell

_CELLS: OrderedDict[tuple[str, str, int], Cell] = OrderedDict()


def query() -> str:
    """Return Spark's number of the query whose task runs here, which stays over restarts; else nothing."""
    context = TaskContext.get()
    return (context.getLocalProperty("sql.streaming.queryId") or "") if context else ""


def take(query: str, plan: str, cell: int, head: Head) -> Cell | None:
    """Take a cell out that can go on; None if there is none. Who fails with it does not put it back.

    What is here of the query's earlier starts goes. The head is of the cell's log; a state has to lead to it.
    """
    old = [key for key in _CELLS if query and key[0] == query and key[1] != plan]
    for key in old:
        del _CELLS[key]
    state = _CELLS.pop((query, plan, cell), None)
    if state is not None and (not state.follows(head) or state.is_worn):
        old, state = [*old, (query, plan, cell)], None
    if old:
        look_again()
    return state


def put(query: str, plan: str, cell: int, state: Cell, budget: int) -> None:
    """Keep a cell, and let go of others that have not been used for long.

    Cells kept here may take ``budget`` bytes together. This one stays whatever it takes: it was just in
    memory, and making it anew costs most.
    """
    _CELLS[query, plan, cell] = state
    kept = len(_CELLS)
    while len(_CELLS) > 1 and sum(each.nbytes for each in _CELLS.values()) > budget:
        _CELLS.popitem(last=False)
    if len(_CELLS) < kept:
        look_again()
