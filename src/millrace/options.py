"""Settings of a run, checked when they are made."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from millrace.errors import OptionError, near

PolicyName = Literal[
    "greedy",
    "rank",
    "fixed",
    "random",
    "naive",
    "lottery",
    "windowed_lottery",
    "a_greedy",
    "bounded",
    "cumulative",
    "interactive",
]
Order = tuple["str | Order", ...]
"""Aliases, or for static plans nested groups of them."""

POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
ARCHITECTURES: tuple[str, ...] = ("static", "joins", "stems", "stairs")
MIGRATIONS: tuple[str, ...] = ("eager", "never", "backoff")
ALGORITHMS: tuple[str, ...] = ("shj", "grace", "hybrid", "sort_merge")
PLACEMENTS: tuple[str, ...] = ("auto", "in_place", "hypercube")


_SECRET = re.compile("key|secret|token|password|credential|signature|sas", re.IGNORECASE)


class StorageOptions(Mapping[str, Any]):
    """How to reach object stores: arguments for the constructors of pyarrow's file systems, by name.

    Frozen. Its text has the names only, for among the values there are secrets.

    Raises:
        OptionError: A name is no text, or a value cannot be sent to the tasks.
    """

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._given = dict(given or {})
        if not all(isinstance(name, str) for name in self._given):
            raise OptionError(
                "option storage_options has a name that is no text: expected names such as 'region'"
            )
        try:
            self._packed = pickle.dumps(sorted(self._given.items(), key=lambda item: item[0]))
        except (pickle.PicklingError, TypeError, AttributeError):
            raise OptionError(
                f"option storage_options is {self!r}, of which a value cannot be sent to the tasks: expected "
                "texts, numbers, True and False, or what else can be pickled"
            ) from None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> StorageOptions:
        """Return a mapping as :class:`StorageOptions`."""
        return given if isinstance(given, StorageOptions) else cls(given)

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._packed == other._packed

    def __hash__(self) -> int:
        return hash(self._packed)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: …" for name in sorted(self._given)) + "}"

    def hidden_in(self, text: str) -> str:
        """Return a text without the values that are secrets by their names."""
        for name, value in self._given.items():
            if _SECRET.search(name) and isinstance(value, str) and value:
                text = text.replace(value, "…")
        return text


@dataclass(frozen=True)
class Research:
    """What researchers set: how eddies work. Users get what measures best.

    Attributes:
        architecture: Where joins keep their state: ``"stems"`` (base tuples only), ``"joins"`` (binary
            joins inside an eddy), ``"stairs"`` (the same with state that can be moved), ``"static"``
            (binary joins in a fixed plan, without an eddy, so a ``policy`` beside it is refused; filters
            alone still have an eddy), or ``"auto"``: STAIRs where three relations or more arrive side by
            side, SteMs otherwise; ``explain()`` says which.
        migration: For ``"stairs"``: when state is moved after a change of routing, one of ``MIGRATIONS``;
            None takes what measures best.
        intermediate: For ``"joins"`` and ``"stairs"``: store intermediate tuples. Without them state holds
            base tuples alone, like that of ``"stems"``, and does not follow routing; they are made again when
            needed.
        algorithm: For joins under a memory budget, how tuples are clustered and when they are joined, one of
            ``ALGORITHMS``.
        policy: Routing policy, one of ``POLICY_NAMES``; None takes what measures best: ``"bounded"`` for
            predicates alone, ``"rank"`` where they come together with joins, and for joins alone
            ``"greedy"``, or ``"cumulative"`` where their state is that of ``"joins"`` or ``"stairs"``. Or one
            of your own (:class:`millrace.engine.policies.Policy`): an object, of which each eddy gets a copy,
            a class that needs no arguments, or ``"package.module:Class"``.
        batch_size: Tuples in a batch, 1 to 1,000,000; 1 is the papers' tuple-at-a-time routing.
        reoptimize_every: Tuples after which routing decisions are made anew; later where they are the same
            again and again, and making them would take more than 1 % of the time.
        order: For ``policy="fixed"`` and for ``architecture="static"``: aliases in the order in which to join
            them. A static plan may nest pairs, ``(("a", "b"), ("c", "d"))``, to be bushy.
        seed: Seed of every random choice.
        regret: For ``policy="bounded"``: the share of what the order as written would cost that looking
            for a better order may cost, above 0 and at most 1.
        placement: ``"in_place"``, ``"hypercube"`` or ``"auto"`` (by size).
        replicate_bytes: At most this much of the smaller relations, in memory, is read by every
            cell in an in-place run.
        block_bytes: Target size of an exchanged block.
        transfer: Let relations that have been read filter those that are read after them and joined with
            them, before these are stored.
        by_content: Let tuples of the streamed relation take routes by the value of an attribute, where a
            sample shows that this saves work.
        partial_aggregates: Let the tasks of a block aggregate their rows, where a query groups them, before
            Spark does.
    """

    architecture: str = "auto"
    migration: str | None = None
    intermediate: bool = True
    algorithm: str = "hybrid"
    policy: Any = field(default=None, hash=False)  # an object that compares by value may have none
    batch_size: int = 65_536
    reoptimize_every: int = 131_072
    order: Order = ()
    seed: int = 0
    regret: float = 0.01
    placement: str = "auto"
    replicate_bytes: int = 512 * 1024 * 1024
    block_bytes: int = 4 * 1024 * 1024
    transfer: bool = True
    by_content: bool = True
    partial_aggregates: bool = True


@dataclass(frozen=True)
class Options(Research):
    """How Millrace runs a query. None of these changes an answer.

    Those of :class:`Research` are set in the same way, by name.

    Attributes:
        memory_budget: Bytes that join state may take in one task; what does not fit is spilled to files. None
            for no limit. Joins of streams spill nothing: it bounds what a worker keeps of several cells.
        spill_folder: Where to put the files; None for the system's folder of temporary files.
        cells: Number of eddies to run in parallel; None takes Spark's default parallelism.
        online: Interleave all sources, so that results come early, instead of building the
            smaller relations first and streaming the largest.
        report: Collect the figures that ``Query.report()`` shows.
        progress: Show a line of progress while an action runs, in a terminal and in a notebook.
        mask_values: Leave the values of rows out of the errors of predicates.
        take_all: Take every join that can be taken, also where starting Python is expected to take longer
            than it saves; in an enabled session those of streams too, whose results have no watermark.
        limits_host: Address under which executors reach the process that plans the query, where the
            tasks of a job agree on the limits of ``async`` predicates; None finds it out.
        limits_port: TCP port there, for firewalls that let only some through; ``to_batches`` and
            ``millrace.monitor.live`` take the one after it. 0 takes free ones.
        limits_bind: Address of this machine to listen on, where it is not ``limits_host`` itself: behind an
            address translation, or in a container, ``"0.0.0.0"`` for all.
        coordinator: Where ``millrace coordinator`` runs, as ``"HOST:PORT"``, and this process and executors
            both reach it: tasks then agree on limits there. Its secret is read from the environment variable
            ``MILLRACE_COORDINATOR_SECRET``; ``cache`` and ``answers`` are folders of that machine.
        without_coordinator: What becomes of limits and lookups where executors do not reach that process, or
            one of the two not the coordinator: ``"split"`` splits limits over the tasks and shares answers
            within each, and what then cannot be promised is told or refused; ``"fail"`` fails the query.
        idle_timeout: Seconds after which the tasks of ``to_batches`` are stopped with an error while its
            reader takes nothing and they wait for it; None lets them wait for ever.
        storage_options: How to reach the object stores of tables and hubs: a mapping of arguments for the
            constructor of pyarrow's file system, such as ``{"endpoint_override": …, "region": …}``, beside
            what the environment says. Never shown.

    Raises:
        OptionError: A value is out of its range, or of another type.
    """

    memory_budget: int | None = None
    spill_folder: str | None = None
    cells: int | None = None
    online: bool = False
    report: bool = True
    progress: bool = True
    mask_values: bool = False
    take_all: bool = False
    limits_host: str | None = None
    limits_port: int = 0
    limits_bind: str | None = None
    coordinator: str | None = None
    without_coordinator: str = "split"
    idle_timeout: float | None = 600.0
    storage_options: Mapping[str, Any] = field(default_factory=StorageOptions)

    def __post_init__(self) -> None:
        self._one_of("architecture", ("auto", *ARCHITECTURES))
        self._check_policy()
        if self.migration is not None:
            self._one_of("migration", MIGRATIONS)
        self._one_of("algorithm", ALGORITHMS)
        self._one_of("placement", PLACEMENTS)
        self._one_of("without_coordinator", ("split", "fail"))
        for name in (each.name for each in fields(self) if isinstance(each.default, bool)):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"option {name} is {getattr(self, name)!r}: expected True or False")
        for name in ("spill_folder", "limits_host", "limits_bind", "coordinator"):
            if not isinstance(getattr(self, name), str | None):
                raise OptionError(f"option {name} is {getattr(self, name)!r}: expected a text")
        if not isinstance(self.storage_options, Mapping | None):
            raise OptionError(
                f"option storage_options is a {type(self.storage_options).__name__}: expected a mapping of "
                "arguments for pyarrow's file system, such as {'region': 'eu-west-1'}"
            )
        object.__setattr__(self, "storage_options", StorageOptions.of(self.storage_options))
        if self.memory_budget is not None:
            self._within("memory_budget", 1, 1 << 60)
        self._within("batch_size", 1, 1_000_000)
        self._within("reoptimize_every", 1, 1_000_000_000)
        self._within("seed", -(1 << 63), 1 << 63)
        self._within("replicate_bytes", 0, 1 << 50)
        self._within("block_bytes", 1024, 1 << 30)
        if type(self.regret) not in (int, float) or not 0 < self.regret <= 1:
            raise OptionError(
                f"option regret is {self.regret!r}: expected a share above 0 and at most 1, such as 0.01"
            )
        self._within("limits_port", 0, 65_534)
        if self.coordinator is not None:
            parse_place(self.coordinator)
        idle = self.idle_timeout
        if idle is not None and (type(idle) not in (int, float) or not 0 < idle < float("inf")):
            raise OptionError(f"option idle_timeout is {idle!r}: expected seconds above 0, or None")
        if self.cells is not None:
            self._within("cells", 1, 100_000)
        if not _is_order(self.order, nested=self.architecture == "static"):
            raise OptionError(
                f"option order takes a tuple of relation names, which architecture='static' may nest, "
                f"got {self.order!r}"
            )

    def _check_policy(self) -> None:
        if isinstance(self.policy, str):
            if ":" not in self.policy:
                self._one_of("policy", POLICY_NAMES)
        elif self.policy is not None and not callable(getattr(self.policy, "choose", None)):
            raise OptionError(
                f"option policy is {self.policy!r}: expected a name, such as 'greedy'; an object or a class "
                "with choose(signature, candidates) -> Decision; or 'package.module:Class'"
            )
        if self.architecture == "static" and self.policy is not None:
            raise OptionError(
                f"option policy is {name_of(self.policy)!r}, and architecture='static' runs a plan that does "
                "not change, so nobody would ask it; expected one of the two: leave out policy, or use "
                "architecture='stems', 'joins' or 'stairs'"
            )

    def _one_of(self, name: str, known: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in known:
            raise OptionError(f"option {name} is {value!r}: {near(str(value), known)}")

    def _within(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise OptionError(f"option {name} is {value!r}: expected a whole number from {low} to {high}")

    @classmethod
    def of(cls, options: Options | dict[str, Any] | None) -> Options:
        """Return ``options`` as :class:`Options`; a dictionary is checked for unknown names."""
        return cls().updated(options)

    def updated(self, options: Options | dict[str, Any] | None) -> Options:
        """Return these settings with others in their place: those of a dictionary, or all.

        Raises:
            OptionError: A name is unknown, or a value is out of its range.
        """
        if options is None:
            return self
        if isinstance(options, Options):
            return options
        if not isinstance(options, Mapping):
            raise OptionError(
                f"options are given as {type(options).__name__}: expected a dictionary such as "
                "{'cells': 8}, or millrace.Options(…)"
            )
        known = [f.name for f in fields(self)]
        for name in options:
            if name not in known:
                raise OptionError(f"unknown option {name!r}: {near(str(name), known)}")
        return replace(self, **options)


def parse_place(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; OptionError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise OptionError(f"a coordinator at {text!r}: expected HOST:PORT, such as '10.0.0.5:7077'")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_order(order: object, *, nested: bool) -> bool:
    return isinstance(order, tuple) and all(
        isinstance(part, str) or (nested and len(part) > 0 and _is_order(part, nested=True)) for part in order
    )


def name_of(policy: Any) -> str:
    """Return what reports call a policy, by what ``Options.policy`` may be."""
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
