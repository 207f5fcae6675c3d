"""Where each relation's tuples are read: in the eddies' own tasks, or through the block exchange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from millrace.graph import QueryGraph
from millrace.options import Options
from millrace.spark.hypercube import Axis, Cube, choose
from millrace.spec import JoinSpec

CELL_BYTES = 512 * 1024 * 1024
"""A cell should receive at most about this much."""

# Reading replicated tables in every task must cost less than this many times what a task's part of
# everything costs; an exchanged byte is written, shuffled and read, about four times the work of a scan.
_EXCHANGE_COST = 4
# A DataFrame may have hundreds of partitions, and each would read the replicated tables again.
_BESIDE_FRAME_BYTES = 16 * 1024 * 1024
# Below this size it does not matter that a table has too few row groups to keep every core busy.
_SMALL_BYTES = 64 * 1024 * 1024


class Mode(Enum):
    """How a relation's tuples reach the eddies."""

    OWN = "read in place: each task reads its own row groups"
    WHOLE = "read whole by every task"
    FRAME = "streamed from Spark's own tasks"
    EXCHANGED = "exchanged in blocks"


@dataclass(frozen=True)
class Size:
    """What is known of a relation before the run.

    Attributes:
        rows: Estimated rows that reach the eddies, after filters.
        bytes: Their estimated size in memory.
        splits: Number of row groups to read; None for a DataFrame.
        distinct: Whether it has set semantics, so that equal tuples must meet in one cell.
    """

    rows: int
    bytes: int
    splits: int | None
    distinct: bool


@dataclass(frozen=True)
class Placement:
    """The decision for a block.

    Attributes:
        modes: Per relation, by number.
        cells: Number of eddies; None when it is the number of a DataFrame's partitions.
        cube: Which cells an exchanged tuple goes to.
        stream: Number of the relation to leave unbuilt, or None to let the eddy choose.
        reason: Why, for the plan.
    """

    modes: tuple[Mode, ...]
    cells: int | None
    cube: Cube
    stream: int | None
    reason: str


def place(join: JoinSpec, sizes: Sequence[Size], options: Options, parallelism: int) -> Placement:
    """Decide where the relations of a block are read."""
    total = sum(size.bytes for size in sizes)
    if options.placement != "hypercube":
        stream = _stream(sizes, forced=options.placement == "in_place")
        if stream is not None:
            reason = _objection(sizes, stream, options, parallelism)
            if reason is None or options.placement == "in_place":
                return _in_place(sizes, stream, parallelism, "the other relations are small")
        else:
            reason = "no relation can be streamed in place"
    else:
        reason = "asked for"
    cells = parallelism
    if options.cells is None:
        cells = max(parallelism, math.ceil(total / CELL_BYTES))
    distinct = [size.distinct for size in sizes]
    cube = choose(QueryGraph.of(join), [max(1, size.bytes) for size in sizes], cells, distinct)
    return Placement((Mode.EXCHANGED,) * len(sizes), cube.cells, cube, None, reason)


def _stream(sizes: Sequence[Size], *, forced: bool) -> int | None:
    """Return the largest relation that may be streamed, or None."""
    free = [number for number, size in enumerate(sizes) if not size.distinct]
    frames = sum(size.splits is None for size in sizes)
    # Beside a streamed DataFrame nothing can be exchanged, so it must be the only one.
    fitting = [n for n in free if sizes[n].splits is not None or frames == 1]
    if not forced and free:
        largest = max(free, key=lambda n: sizes[n].bytes)
        return largest if largest in fitting else None
    return max(fitting, key=lambda n: sizes[n].bytes, default=None)


def _objection(sizes: Sequence[Size], stream: int, options: Options, parallelism: int) -> str | None:
    """Return why not to run in place, or None."""
    total = sum(size.bytes for size in sizes)
    small = total - sizes[stream].bytes
    splits = sizes[stream].splits
    if small > options.replicate_bytes:
        return f"the smaller relations take {_megabytes(small)}, more than replicate_bytes"
    if splits is None:
        if small > _BESIDE_FRAME_BYTES:
            return f"a DataFrame is the largest relation, and the others take {_megabytes(small)}"
        return None
    cells = max(1, min(parallelism, splits))
    if small * (1 - 1 / cells) >= _EXCHANGE_COST * total / cells:
        return f"reading {_megabytes(small)} in each of {cells} tasks costs more than an exchange"
    if splits * 2 <= parallelism and total > _SMALL_BYTES:
        return f"the largest relation has only {splits} row groups for {parallelism} tasks"
    return None


def _in_place(sizes: Sequence[Size], stream: int, parallelism: int, reason: str) -> Placement:
    modes = [Mode.EXCHANGED if size.splits is None else Mode.WHOLE for size in sizes]
    splits = sizes[stream].splits
    if splits is None:
        modes[stream] = Mode.FRAME
        return Placement(tuple(modes), None, Cube(()), stream, reason)
    modes[stream] = Mode.OWN
    cells = max(1, min(parallelism, splits))
    # On the only axis, no exchanged relation has a coordinate: each of their tuples goes to every cell.
    cube = Cube((Axis(cells, None, ((stream, ""),)),) if cells > 1 else ())
    return Placement(tuple(modes), cells, cube, stream, reason)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
