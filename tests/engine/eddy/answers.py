"""What an answer must not depend on: one strategy that draws all of it together, and one way to run it.

An :class:`Example` is a block with data and everything that decides how it is run. Only combinations that
the engine takes are drawn; those that it refuses have tests of their own.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from lab.queues import Backpressure
from millrace.engine.access.schedule import Schedule
from millrace.engine.eddy import preference
from millrace.engine.eddy.ingest import KeyRanges, ReadOrder
from millrace.engine.eddy.output import Output
from millrace.engine.operators import beside, content, selection, udf_selection
from millrace.engine.plan.expressions import Column, ColumnRef, Compare, Literal, Predicate
from millrace.engine.spill import context, spilling
from millrace.engine.spill.guard import BudgetMonitor
from millrace.engine.spill.run_of import run_of
from millrace.engine.stairs.state import StairState
from millrace.engine.stems import conditions as matching
from millrace.engine.tuples import keys
from millrace.errors import ExecutionError
from millrace.limits.clock import VirtualClock
from millrace.options import ALGORITHMS, MIGRATIONS, POLICY_NAMES, Options
from millrace.parquet.discovery import open_table
from millrace.parquet.reading import read_splits
from millrace.parquet.tables import splits
from millrace.predicates import PredicateSpec
from tests.engine.eddy import oracle
from tests.engine.eddy.access_cases import Noted, Plan, left_joins_asking, modules, plans
from tests.engine.eddy.oracle import KINDS, Case, Rows, answer_of, calling, having, multiset, with_self_joins
from tests.engine.eddy.unrest import MOVES, Moves, Unrest

KEYED = ("plain", "dense")
"""Kinds of blocks whose tables all have ``id`` and the number ``k0``, and no two equal rows."""
ROW = 330
"""Bytes that two copies of the widest tuple of a case, with its codes, may take."""


@dataclass(frozen=True)
class Example:
    """A block, and how it is run.

    Attributes:
        choices: What was chosen of each dimension, and among which values.
        chunk: Most rows of a batch that a source yields.
        pauses: How often a source that stalls has nothing, before each of its batches in turn.
        wanted: Whose results come first,
        later: and whose do after the second batch of results; None for the same.
        aside: Bytes of others that wait until it is known whether that pays; no work takes time.
        piece: Bytes that are gathered at once.
        divides: Whether any attribute divides tuples by content, however little it tells.
        share: Of the memory budget for state; None for the usual one.
        kept: Of the memory budget for relations beside the join.
        stops: The chance that state is said to be too large when it is looked at.
    """

    choices: Mapping[str, tuple[Any, tuple[Any, ...]]]
    case: Case
    options: Options
    chunk: int
    schedule: Schedule | None = None
    access: Mapping[str, Plan] = field(default_factory=dict)
    source: str = "batches"
    pauses: tuple[int, ...] = ()
    picky: PredicateSpec | None = None
    wanted: tuple[Predicate, ...] = ()
    later: tuple[Predicate, ...] | None = None
    aside: int = preference.FIRST_ASIDE
    limits: Backpressure | None = None
    moves: Moves | None = None
    collides: bool = False
    piece: int | None = None
    divides: bool = False
    share: float | None = None
    kept: float = 0.5
    stops: float = 0.0

    def dimensions(self) -> dict[str, object]:
        """Return what was chosen of each dimension, and what of some was drawn with the data."""
        spec = self.case.spec
        return {
            **{name: value for name, (value, _) in self.choices.items()},
            "schedule": _kind_of(self.schedule),
            "access": _accessed(self.access),
            "exists": len(spec.beside) > len(spec.outer),
            "outer": len(spec.outer),
            "windows": any(r.window for r in spec.relations),
            "shared": any(r.same_as for r in spec.relations),
        }

    def expected(self) -> Rows | None:
        """Return DuckDB's rows; None where a predicate's exception has to surface."""
        if self.picky is not None and self.picky.on_error == "fail":
            counted = replace(self.case, spec=replace(self.case.spec, output=(), count_only=True))
            raising = counted.sql().replace("picky(", "raising(")
            if answer_of(raising, self.case.tables) != {(0,): 1}:
                return None
        return self.case.expected()


def _kind_of(schedule: Schedule | None) -> str:
    if schedule is None:
        return "own"
    return ("built" if schedule.unbuilt is None else "streamed") + (" in turn" * schedule.interleaved)


def _accessed(access: Mapping[str, Plan]) -> str:
    used = [plan for plan in access.values() if plan.indexes or plan.scans]
    if not used:
        return "none"
    alone = all(not plan.source and not plan.scans and len(plan.indexes) == 1 for plan in used)
    return "index alone" if alone else "competing"


# Drawing


@st.composite
def answers(draw, architecture: str, number: int | None = None, fixed: Mapping | None = None) -> Example:
    """Draw an example for an architecture.

    The number chooses all dimensions, so that only data are drawn; without it a number is drawn as well.
    What is fixed is not chosen: values of dimensions, a strategy for the ``case``, and ``plans`` for it.
    """
    fixed = fixed or {}
    chosen = draw(st.integers(0, (1 << 24) - 1)) if number is None else number
    choices: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def one(name: str, *values: Any) -> Any:
        value = fixed[name] if name in fixed else random.Random(f"{chosen} {name}").choice(values)
        choices[name] = value, values
        return value

    within_budget = one("budget", False, False, False, False, True)
    kinds = {
        "plain": oracle.cases(4, 16) if within_budget else oracle.cases(5),
        "dense": oracle.dense_cases(),
        "mixed": oracle.mixed_cases(),
        "ordered": oracle.ordered_cases(),
        "sets": oracle.set_cases(),
        "skewed": oracle.dense_cases(rows=14),
    }
    shape = one("shape", "plain", "dense", *kinds)
    case: Case = draw(fixed["case"] if "case" in fixed else kinds[shape])
    spilled = within_budget and len(case.spec.relations) > 1
    if shape != "sets" and not spilled and one("windowed", False, False, False, True):
        case = draw(oracle.windowed(case))
    if shape != "sets" and one("sharing", False, True):
        case = with_self_joins(case)
    if shape in KEYED and one("beside", False, False, False, True):
        case = _beside(draw, case)
    windowed = any(relation.window for relation in case.spec.relations)
    spilled = within_budget and len(case.spec.sources) > 1 and not windowed
    user = None
    if shape in KEYED and one("picky", False, False, False, True):
        user, case = _picky(draw, case, one("kind", *KINDS), last=spilled and bool(case.spec.beside))
    access: Mapping[str, Plan] = {}
    if shape in (*KEYED, "mixed") and not spilled and one("asked", False, False, True):
        whole = architecture in ("stems", "auto")
        access = fixed.get("plans") or draw(plans(case, alone=not whole))
    if case.spec.outer and not spilled and one("outer_asks", False, True):
        case, found = draw(left_joins_asking(case))
        access = {**access, **found}
    batch = one("batch", 1, 2, 3, 7, 100)
    options = Options(
        architecture=architecture,
        policy=None if architecture == "static" else one("policy", *POLICY_NAMES),
        migration=one("migration", None, *MIGRATIONS) if architecture == "stairs" else None,
        intermediate=one("intermediate", True, True, True, False),
        batch_size=batch,
        reoptimize_every=one("reoptimize", 1, 3, 10, 1000),
        online=one("online", False, True),
        transfer=one("transfer", True, True, False),
        seed=draw(st.integers(0, 3)),
    )
    example = Example(
        choices,
        case,
        options,
        one("chunk", 1, 2, 5, 1000),
        access=access,
        picky=user,
        collides=one("collides", False, False, True),
        piece=one("piece", None, None, None, 1, 50),
        divides=one("divides", False, False, True),
    )
    if spilled:
        return _spilled(draw, example, one)
    scheduled = one("scheduled", True, True, False)
    example = replace(
        example,
        schedule=draw(schedules(case, _free(case, access), one("order", "any"))) if scheduled else None,
        source=one("source", "batches", "batches", "stalling", "files"),
        pauses=tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))),
    )
    if architecture == "static":
        return example
    if one("preference", False, False, False, True):
        example = replace(example, **_preference(draw, case, changes=one("changes", False, True)))
        example = replace(example, aside=one("aside", 100, preference.FIRST_ASIDE))
    # Queues do not go with state of base tuples alone.
    whole_state = options.intermediate or architecture not in ("joins", "stairs", "auto")
    if whole_state and one("queues", False, False, False, True):
        limits = Backpressure(draw(st.sampled_from([None, 1, 2, 7])), draw(st.sampled_from([1, 3, 20])))
        example = replace(example, limits=limits)
    # The checker of invariants compares values as they are, and knows nothing of relations beside the block.
    is_checked = shape != "mixed" and not case.spec.beside and not _asked(access)
    if (
        architecture != "stems"
        and is_checked
        and options.intermediate
        and one("moves", True, True, True, True, False)
    ):
        moves = Moves(
            draw(st.integers(0, 1 << 30)),
            often=one("often", 0.0, 0.3, 0.6),
            chosen=one("chosen", MOVES),
            hope=one("hope", "", "all", "some"),
        )
        example = replace(example, moves=moves)
    return example


def _asked(access: Mapping[str, Plan]) -> bool:
    return any(plan.indexes or plan.scans for plan in access.values())


def _beside(draw: st.DrawFn, case: Case) -> Case:
    """Draw relations beside a block whose columns are those that all of its tables have."""
    schemas = {str(table.schema) for table in case.tables.values()}
    return draw(oracle.cases_beside(case)) if len(schemas) == 1 else case


def _picky(draw: st.DrawFn, case: Case, kind: str, *, last: bool) -> tuple[PredicateSpec, Case]:
    """Draw a predicate that may raise, and put it among those of the block, or behind them."""
    read = draw(st.permutations(case.spec.aliases))[: draw(st.integers(1, 2))]
    residuals = list[Predicate](case.spec.residuals)
    place = len(residuals) if last else draw(st.integers(0, len(residuals)))
    on_error = draw(st.sampled_from(["fail", "fail", "null"]))
    how = {"on_error": on_error, "deterministic": draw(st.sampled_from([True, True, False]))}
    residuals.insert(place, calling("picky", kind, read, **how))
    return residuals[place].spec, having(case, *residuals)


def _preference(draw: st.DrawFn, case: Case, *, changes: bool) -> dict[str, tuple[Predicate, ...] | None]:
    """Draw which tuples are wanted first: those of a relation with a number from some value on."""
    numbers = [
        (relation.alias, each.name)
        for relation in case.spec.relations
        for each in relation.schema
        if pa.types.is_int64(each.type)
    ]
    if not numbers:
        return {}
    alias, name = draw(st.sampled_from(numbers))

    def from_(low: int) -> Compare:
        return Compare(">=", Column(ColumnRef(alias, name)), Literal(low, pa.int64()), pa.int64())

    wanted = (from_(draw(st.sampled_from([-1, 1, 2]))),)
    later = draw(st.sampled_from([(), (from_(2), from_(1))]))
    return {"wanted": wanted, "later": later if changes else None}


@st.composite
def schedules(draw, case: Case, free: Collection[int] | None = None, kind: str = "any") -> Schedule:
    """Draw the order of sources, whether they are interleaved, and which stays unbuilt, of those free to."""
    relations = case.spec.relations
    order = tuple(draw(st.permutations(range(len(relations)))))
    if free is None:
        free = [i for i, r in enumerate(relations) if not r.distinct]
    if not free or kind == "built" or (kind == "any" and draw(st.booleans())):
        return Schedule(None, True, order)
    unbuilt, interleaved = draw(st.sampled_from(sorted(free))), kind == "streamed" or draw(st.booleans())
    if not interleaved:
        order = (*(r for r in order if r != unbuilt), unbuilt)
    return Schedule(unbuilt, interleaved, order)


def _free(case: Case, access: Mapping[str, Plan]) -> list[int]:
    leads = {r.same_as for r in case.spec.relations}
    return [
        i
        for i, r in enumerate(case.spec.relations)
        if r.same_as is None and r.alias not in leads and not r.distinct
        if access.get(r.alias, Plan()) == Plan()
    ]


def _spilled(draw: st.DrawFn, example: Example, one: Callable[..., Any]) -> Example:
    """Draw a budget for tuples of any number, or a stop at any moment."""
    case, batch = example.case, example.options.batch_size
    if draw(st.booleans()):  # nothing is known of the sizes beforehand
        relations = tuple(replace(r, rows=None) for r in case.spec.relations)
        case = replace(case, spec=replace(case.spec, relations=relations))
    stops = one("stops", 0.0, 0.0, 0.05, 0.2, 1.0)
    many = 1_000_000 if stops else draw(st.sampled_from([ROW, 2 * ROW, 4 * ROW, 1_000_000]))
    options = replace(example.options, memory_budget=batch * many, algorithm=one("algorithm", *ALGORITHMS))
    return replace(
        example,
        case=case,
        options=options,
        source=one("source", "batches", "files"),
        stops=stops,
        # Less for state than its usual share lets a few tuples be too many, though a batch still fits.
        share=None if stops else draw(st.sampled_from([0.05, 0.2, 0.7])),
        kept=one("kept", 0.0, 0.5) if case.spec.beside else 0.5,
    )


# Running

WRONG = "a wrong answer"
RAISED = "an exception that had to surface, or had not"
ASKED = "a binding that was asked for twice, or is null"
LEFT = "files left behind"
LASTING = "intermediate tuples though only base tuples may be held"


def faults_of(example: Example, *, strict: bool = True) -> set[str]:
    """Run an example in virtual time; what the checker finds is raised, or is among the faults."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for patch in _patches(example):
            stack.enter_context(patch)
        return _faults(example, Path(folder), strict=strict)


def _weak_hashes() -> list[Any]:
    """Return what makes hashes of one bit, so that a handful of keys collides."""

    def one_bit(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
        lengths = np.diff(offsets).astype(np.int64)
        last = np.append(data, np.uint8(0))[np.where(lengths > 0, offsets[1:] - 1, -1)]
        return (lengths + last) % 2

    def same(coded: list[np.ndarray]) -> np.ndarray:
        return coded[0] if len(coded) == 1 else np.zeros_like(coded[0])

    return [
        mock.patch.object(keys, "hash_bytes", one_bit),
        mock.patch.object(matching, "combine", lambda left, right: (left ^ right) & 1),
        mock.patch.object(beside, "combine_codes", same),
    ]


def _patches(example: Example) -> list[Any]:
    """Return what makes rare things happen to few tuples."""
    patches = _weak_hashes() if example.collides else []
    if example.piece is not None:
        patches += [
            mock.patch.object(module, "BATCH_BYTES", example.piece)
            for module in (beside, matching, selection, udf_selection)
        ]
    if example.divides:
        least = [(content, "_LEAST_OF_BATCH", 2), (content, "_AGAIN", 1), (content, "_LEAST_OF_BUCKET", 1)]
        patches += [mock.patch.object(*each) for each in [*least, (content, "_WORTH", 1.5)]]
    if example.share is not None:
        patches.append(mock.patch.object(context, "_STATE_SHARE", example.share))
    patches.append(mock.patch.object(spilling, "KEPT_SHARE", example.kept))
    if example.stops:
        draw, left = np.random.default_rng(example.options.seed), iter(range(6))

        def too_much(*_: object) -> bool:
            return draw.random() < example.stops and next(left, None) is not None

        patches.append(mock.patch.object(BudgetMonitor, "_is_too_much", too_much))
    return patches


def _faults(example: Example, folder: Path, *, strict: bool) -> set[str]:
    case, clock, spilled = example.case, VirtualClock(), folder / "spilled"
    spilled.mkdir()
    options = replace(example.options, spill_folder=str(spilled))
    given: dict[str, Any] = {"clock": clock}
    if example.schedule is not None:
        given["schedule"] = example.schedule
    if example.source == "files":
        given["ranges"] = KeyRanges()
    sources = _sources(example, folder, given.get("ranges"))
    indexes: list[Noted] = []
    if _asked(example.access):
        given["access"], indexes = modules(case, example.access, clock, example.chunk)
    if example.piece is not None:
        given["output"] = Output(case.spec, options.batch_size, example.piece)
    given["eddy"] = example.limits or (preference.PreferringDataflow if example.wanted else None)
    with mock.patch.object(preference, "FIRST_ASIDE", example.aside):
        run: Any = run_of(case.spec, sources, options, **given)
    if example.wanted:
        preference.prefer(run, example.wanted)
    faults: set[str] = set()
    state = getattr(getattr(run, "dataflow", None), "state", None)
    if isinstance(state, StairState):
        if not options.intermediate and case.spec.is_repeatable and not _asked(example.access):
            _watch_base_tuples(state, faults)
        if example.moves is not None:
            Unrest(state, case.spec, example.moves, faults, strict=strict)
    rows = _rows(example, run, case)
    for index in indexes:
        if len(set(index.bindings)) < len(index.bindings) or any("None" in each for each in index.bindings):
            faults.add(ASKED)
    if any(spilled.iterdir()):
        faults.add(LEFT)
    expected = example.expected()
    if rows != expected:
        faults.add(WRONG if None not in (rows, expected) else RAISED)
    return faults


def _sources(example: Example, folder: Path, ranges: KeyRanges | None) -> dict[str, Any]:
    pieces = example.case.batches(example.chunk)
    pieces = {a: own for a, own in pieces.items() if example.access.get(a, Plan()).source}
    if ranges is not None:
        return scanned(example.case, pieces, folder, example.chunk, ranges)
    if example.source == "stalling":
        return {alias: stalling(own, example.pauses[i:]) for i, (alias, own) in enumerate(pieces.items())}
    return pieces


def _rows(example: Example, run: Any, case: Case) -> Rows | None:
    results: list[pa.RecordBatch] = []
    try:
        for batch in run.run():
            results.append(batch)
            if example.later is not None and len(results) == 2:
                preference.prefer(run, example.later)
    except ExecutionError as error:
        if "is one of those" not in str(error):
            raise
        return None
    return multiset(pa.Table.from_batches(results, case.spec.output_schema))


def _watch_base_tuples(state: StairState, faults: set[str]) -> None:
    """Look at points of stasis whether state holds base tuples alone."""
    rest = state.at_stasis

    def at_stasis() -> bool:
        for _, stair in state.stairs.stairs():
            for signature, segment in stair.segments.items():
                if segment.live and signature.span != 1 << stair.owner:
                    faults.add(LASTING)
        return rest()

    state.at_stasis = at_stasis  # type: ignore[method-assign]


def stalling(pieces: Sequence[pa.RecordBatch], pauses: Sequence[int]) -> Iterator[Any]:
    """Yield batches, each after so many times nothing."""
    for i, piece in enumerate(pieces):
        yield from [None] * (pauses[i % len(pauses)] if pauses else 0)
        yield piece
    yield from [None] * (pauses[0] if pauses else 0)


def scanned(
    case: Case, sources: Mapping, folder: Path, rows: int, ranges: KeyRanges, size: int = 4
) -> dict[str, Any]:
    """Return scans of files of the tables, in row groups of so many rows, and in batches of a size."""
    found = {}
    for alias in sources:
        path = folder / f"{alias}.parquet"
        pq.write_table(case.tables[alias], path, row_group_size=rows)
        table, names = open_table(path), tuple(case.tables[alias].schema.names)
        assert table.unsupported is None
        order = ranges.orders.setdefault(alias, ReadOrder())
        keeps = partial(ranges.keeps, alias)
        found[alias] = read_splits(splits(table), names, batch_size=size, keeps=keeps, order=order)
    return found
