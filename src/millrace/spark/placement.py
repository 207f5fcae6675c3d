"""Where each relation's tuples are read: in the eddies' own tasks, or through the block exchange."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa

from millrace.engine.plan.expressions import Column, ColumnRef, exists_in
from millrace.engine.plan.graph import QueryGraph
from millrace.engine.plan.spec import Equality, JoinSpec
from millrace.options import Options
from millrace.spark.hypercube import Axis, Cube, choose, class_axes

CELL_BYTES = 512 * 1024 * 1024
"""A cell should receive at most about this much."""

# Reading replicated tables in every task must cost less than this many times what a task's part of
# everything costs; an exchanged byte is written, shuffled and read, about four times the work of a scan.
_EXCHANGE_COST = 4
# A DataFrame may have hundreds of partitions, and each would read the replicated tables again.
_BESIDE_FRAME_BYTES = 16 * 1024 * 1024
# A cell that owns its keys waits for no other one; for that, cells may receive so many times the least.
_OWNING_COST = 2
# Below this size it does not matter that a table has too few row groups to keep every core busy.
_SMALL_BYTES = 64 * 1024 * 1024
# A relation that every map task reads takes so much memory at most; the task sends so many times as much.
_READ_BYTES = 16 * 1024 * 1024
_SENT = 4


class Mode(Enum):
    """How a relation's tuples reach the eddies; the values are what plans say."""

    PARTITIONED = "read in place: each task reads its own row groups"
    BROADCAST = "read whole by every task"
    STREAMED = "streamed from Spark's own tasks"
    SHUFFLED = "exchanged in blocks"
    LOOKUP = "looked up as its keys come"


@dataclass(frozen=True)
class Size:
    """What is known of a relation before the run.

    What is fixed must not be streamed or partitioned by row: it needs deduplication within one cell, or it is
    the inner side of a semijoin, where any tuple may look for a match.
    """

    rows: int  # that are read, before filters; but a DataFrame has its filters applied
    bytes: int  # in memory
    splits: int | None  # row groups to read; None for a DataFrame
    is_fixed: bool
    is_lookup: bool = False  # whether it is not read at all, but looked up


@dataclass(frozen=True)
class Placement:
    """The decision for a block: a mode for each relation, and why."""

    modes: tuple[Mode, ...]
    cells: int | None  # eddies; None when it is the number of a DataFrame's partitions
    cube: Cube  # which cells a shuffled tuple goes to
    stream: int | None  # number of the relation to leave unbuilt, or None to let the eddy choose
    reason: str


def place(
    join: JoinSpec,
    sizes: Sequence[Size],
    options: Options,
    parallelism: int,
    bound: Mapping[int, Sequence[tuple[str, ...]]] | None = None,
    partitions: int = 200,
    stream: int | None = None,
) -> Placement:
    """Decide where the relations of a block are read, those beside the join last.

    ``bound`` are the relations that are looked up, by number, with the bind columns of their indexes;
    ``partitions`` are as many as Spark would shuffle DataFrames into; ``stream`` is a streaming DataFrame.
    """
    if stream is not None:
        return _in_place(sizes, stream, parallelism, f"{join.aliases[stream]} is a stream")
    cells = _cells(sizes, options, parallelism, partitions)
    if bound:  # any cell may ask for any tuple of these
        sizes = [replace(size, is_fixed=size.is_fixed or n in bound) for n, size in enumerate(sizes)]
        return _by_keys(join, sizes, options, parallelism, bound, cells)
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
    cube = choose_cube(join, [max(1, size.bytes) for size in sizes], cells, [s.is_fixed for s in sizes])
    return Placement((Mode.SHUFFLED,) * len(sizes), cube.cells, cube, None, reason)


def choose_cube(join: JoinSpec, sizes: Sequence[float], cells: int, fixed: Sequence[bool]) -> Cube:
    """Return the cube for a block, relations beside the join included; see :func:`hypercube.choose`.

    What has no class of its own goes to every cell. The keys of EXISTS and NOT EXISTS partition like a
    join's, but a tuple with a null key passes NOT EXISTS, and may pass an OR: it has to stay where nothing
    else rejects it. ``NOT IN`` needs to know of every null, and whether there is any tuple at all.

    Those of left joins do as well: one cell has a tuple, and all that it can match. A key that is a column of
    another left-joined relation does not: the cells that have none of its tuples would say "no match" too.
    """
    plain, staying = _plain(join)
    return _keeping(choose(QueryGraph.of(plain), sizes, cells, fixed), staying)


_Columns = set[tuple[int, str]]


def _plain(join: JoinSpec, looked_up: Collection[int] = ()) -> tuple[JoinSpec, _Columns]:
    """Return a block with inner joins alone, that can be partitioned alike, and columns whose nulls stay.

    What is looked up partitions nothing: there may be its tuples in every cell.
    """
    plain = JoinSpec(join.sources, join.equalities)
    staying: _Columns = set()
    unread = {plain.aliases[number] for number in looked_up}
    asking = [
        (each.keys, each is p and not each.negated)
        for p in join.residuals
        for each in exists_in(p)
        if not each.null_aware
    ]
    asking += [(each.keys, False) for each in join.outer]
    for keys, needed in sorted(asking, key=lambda pair: not pair[1]):
        for key in keys:
            assert isinstance(key.left, Column)
            assert isinstance(key.right, Column)
            left, right = key.left.ref, key.right.ref
            if left.relation not in join.aliases or left.relation in unread:
                continue
            if not needed:
                # One column of the relation would tie two others to each other, which need not be equal.
                if _is_key(plain, right, key.type):
                    continue
                if not _is_key(plain, left, key.type):
                    staying.add((plain.aliases.index(left.relation), left.column))
            plain = replace(plain, equalities=(*plain.equalities, Equality(left, right, key.type)))
    return plain, staying


def _keeping(cube: Cube, staying: _Columns) -> Cube:
    """Return a cube in which nulls of some columns stay in a cell."""
    return Cube(tuple(replace(axis, nulls=not staying.isdisjoint(axis.columns)) for axis in cube.axes))


def _is_key(join: JoinSpec, ref: ColumnRef, kind: pa.DataType) -> bool:
    return any(ref in each.ends and each.type == kind for each in join.equalities)


def _cells(sizes: Sequence[Size], options: Options, parallelism: int, partitions: int) -> int:
    """Return the number of cells of an exchange; DataFrames ask for no more than Spark takes partitions.

    Spark's estimates of these multiply at every join and may be millions of times too large.
    """
    if options.cells is not None:
        return parallelism
    needed = [
        sum(s.bytes for s in sizes if (s.splits is None) is frames) / CELL_BYTES for frames in (False, True)
    ]
    return max(parallelism, math.ceil(needed[0]), min(partitions, math.ceil(sum(needed))))


def _by_keys(
    join: JoinSpec,
    sizes: Sequence[Size],
    options: Options,
    parallelism: int,
    bound: Mapping[int, Sequence[tuple[str, ...]]],
    cells: int,
) -> Placement:
    """Decide for a block with lookups: tuples are partitioned by the keys that are asked for.

    One cell then owns a key, and no two have to agree on who asks for it. Where that would load the cells
    too much, or in place, any cell may want any key. The job's coordinator then has it asked for once.
    """
    modes = tuple(Mode.LOOKUP if size.is_lookup else Mode.SHUFFLED for size in sizes)
    if options.placement == "in_place":
        stream = _stream(sizes, forced=True)
        if stream is not None:
            return _in_place(sizes, stream, parallelism, "asked for")
    if all(size.is_lookup for size in sizes):
        return Placement(modes, 1, Cube(()), None, "everything is looked up")
    plain, staying = _plain(join, bound)
    graph = QueryGraph.of(plain)
    weights = [0 if size.is_lookup else max(1, size.bytes) for size in sizes]
    fixed = [size.is_fixed for size in sizes]
    best = _keeping(choose(graph, weights, cells, fixed, list(bound)), staying)
    keys = {(relation, column) for relation, binds in bound.items() for key in binds for column in key}
    owners = [
        _keeping(Cube((replace(axis, share=cells),)), staying)
        for axis, number in class_axes(graph, list(bound))
        if not keys.isdisjoint(graph.classes[number].members)
    ]

    def load(cube: Cube) -> float:
        return sum(weight * cube.copies(n) / cube.cells for n, weight in enumerate(weights))

    owner = min(owners, key=load, default=None)
    if owner is not None and load(owner) <= _OWNING_COST * load(best):
        return Placement(modes, owner.cells, owner, None, "each key is to have one cell that asks for it")
    return Placement(modes, best.cells, best, None, "keys are asked for by any cell, once")


def _stream(sizes: Sequence[Size], *, forced: bool) -> int | None:
    """Return the largest relation that may be streamed, or None."""
    free = [number for number, size in enumerate(sizes) if not size.is_fixed and not size.is_lookup]
    frames = sum(size.splits is None and not size.is_lookup for size in sizes)
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
    modes = [
        Mode.LOOKUP if size.is_lookup else Mode.SHUFFLED if size.splits is None else Mode.BROADCAST
        for size in sizes
    ]
    splits = sizes[stream].splits
    if splits is None:
        modes[stream] = Mode.STREAMED
        return Placement(tuple(modes), None, Cube(()), stream, reason)
    modes[stream] = Mode.PARTITIONED
    cells = max(1, min(parallelism, splits))
    # On the only axis, no exchanged relation has a coordinate: each of their tuples goes to every cell.
    cube = Cube((Axis(cells, None, ((stream, ""),)),) if cells > 1 else ())
    return Placement(tuple(modes), cells, cube, stream, reason)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def small_relations(join: JoinSpec, sizes: Sequence[Size], filtered: Sequence[bool], tasks: int) -> list[int]:
    """Return relations that every map task should read, the smallest first; tasks filter some relations."""
    graph = QueryGraph.of(join)
    most = min(_READ_BYTES, sum(size.bytes for size in sizes) // (_SENT * tasks))
    small: list[int] = []
    for number in sorted(range(len(join.relations)), key=lambda n: sizes[n].rows):
        size = sizes[number]
        reached = any(number in graph.neighbours(1 << other) for other in small)
        if size.splits is None or size.bytes > most or len(graph.roles(number)) > 1:
            continue
        if filtered[number] or reached:
            small.append(number)
            most -= size.bytes
    return small
