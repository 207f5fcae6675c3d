"""A figure of a paper: what it claims, what can be changed about it, and what a run of it finds.

The claims are stated before any run, as bounds on numbers that the run returns. A run measures; it never
judges, prints, draws or writes. A claim may name a broken engine, the same run without the mechanism that
it is about, which fails it: so the claim is known to look at that mechanism.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from millrace.engine.policies import Policy
from millrace.errors import OptionError, near

Verdict = Literal["holds", "differs", "does not hold"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""From best to worst."""

MAX_SEED = 2**32 - 1
Numbers = Sequence[float] | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Parameter:
    """A number that a run takes, from ``low`` to ``high``, as in ``--set name=value``.

    The default is the paper's where the paper says; a whole number there asks for whole numbers. The unit is
    such as ``tuples``, and empty for none.
    """

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str

    def check(self, value: float) -> float:
        """Return the value, as a whole number where the default is one.

        Raises:
            OptionError: It is out of range, or has a fraction and may not.
        """
        whole = isinstance(self.default, int)
        if self.low <= value <= self.high and not (whole and value % 1):
            return int(value) if whole else float(value)
        kind = "a whole number" if whole else "a number"
        unit = f" {self.unit}" if self.unit else ""
        raise OptionError(
            f"{self.name} is {value:,g}: expected {kind} from {self.low:,g} to {self.high:,g}{unit}"
        )


@dataclass(frozen=True)
class Settings:
    """What one run takes: a seed of all random numbers, and parameters by name.

    ``ablated`` is the name of the broken engine to run, empty for the whole one. ``policy`` is a routing
    policy of the reader's own, which figures with ``policies`` show beside the others.
    """

    seed: int
    values: Mapping[str, float]
    ablated: str = ""
    policy: Callable[[], Policy] | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


@dataclass(frozen=True)
class Curve:
    """One line of a panel: ``y`` over ``x``, which are equally long."""

    name: str
    x: Numbers
    y: Numbers

    def __post_init__(self) -> None:
        # Plain numbers: outcomes travel between processes and into JSON.
        object.__setattr__(self, "x", tuple(map(float, self.x)))
        object.__setattr__(self, "y", tuple(map(float, self.y)))
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.name!r} has {len(self.x)} x and {len(self.y)} y")


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        x_label: With its unit, as ``y_label``. In a panel of bars, ``x_label`` is what the groups are.
        kind: How curves are drawn; ``steps`` keep a value until the next x. ``bars`` lie and begin at zero, a
            group of them for each name in ``x_names``, so that names may be long.
        marks: Moments to point out on the x axis, each a place and a few words.
        static: Names of curves, or of bars where there is one curve, that are static plans: these are grey.
    """

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    kind: Literal["line", "steps", "bars", "points"] = "line"
    x_log: bool = False
    y_log: bool = False
    x_names: Sequence[str] = ()
    marks: Sequence[tuple[float, str]] = ()
    static: Iterable[str] = ()

    def __post_init__(self) -> None:
        for name in ("curves", "x_names", "marks", "static"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.kind == "bars" and (self.x_log or self.y_log):
            raise ValueError(f"{self.title}: a bar on a logarithmic axis has no length")

    @classmethod
    def over(
        cls, title: str, x_label: str, y_label: str, x: Numbers, curves: Mapping[str, Numbers], **more: Any
    ) -> Panel:
        return cls(title, x_label, y_label, [Curve(name, x, y) for name, y in curves.items()], **more)

    @classmethod
    def bars(cls, title: str, label: str, values: Mapping[str, float], **more: Any) -> Panel:
        return cls.grouped(title, label, values, {title: list(values.values())}, **more)

    @classmethod
    def grouped(
        cls, title: str, label: str, names: Iterable[str], curves: Mapping[str, Numbers], **more: Any
    ) -> Panel:
        """Return a panel with a group of bars for each name, one bar of each curve."""
        names = list(names)
        return cls.over(title, "", label, range(len(names)), curves, kind="bars", x_names=names, **more)


@dataclass(frozen=True)
class Claim:
    """What a figure of a paper comes down to, as bounds on a number that the run returns.

    Attributes:
        figure: Name of the number, which is from ``low`` to ``high``, as the formula ``bounds`` says.
        paper: The paper's number or shape, in words.
        fails: The broken engine that fails the claim, a key of :attr:`Figure.broken`; empty for none.
        cause: Why the number is known not to come out as claimed; empty where it is expected to.
        found: The least and the most that the number is if that is the cause.
    """

    says: str
    figure: str
    low: float
    high: float
    bounds: str
    paper: str = ""
    fails: str = ""
    cause: str = ""
    found: tuple[float, float] = (math.inf, -math.inf)

    def judge(self, figures: Mapping[str, float]) -> Verdict:
        """Return the verdict on a run's numbers; one that is no number fails."""
        value = figures[self.figure]
        if self.low <= value <= self.high:
            return "holds"
        return "differs" if self.found[0] <= value <= self.found[1] else "does not hold"


_BOUNDS = re.compile(r"(?:(?P<low>\S+) ≤ )?(?P<figure>[a-z]\S*)(?: ≤ (?P<high>\S+)| = (?P<equal>\S+))?")
_BUT = re.compile(r" but (-?[\d.]+) to (-?[\d.]+): ")


def claims_of(table: str) -> tuple[Claim, ...]:
    """Read a table of claims.

    A claim is ``BOUNDS | CLAIM | PAPER | BROKEN``: bounds on a number such as ``0 ≤ lead ≤ 1``, what is
    claimed, the paper's number or shape, and the broken engine that fails the claim. The last two may be
    left out. ``but LOW to HIGH: CAUSE`` behind it says where the number is known to be instead, and why.
    Lines that are indented go on with the claim; lines with ``#`` say where bounds come from.
    """
    text = re.sub(r"^\s*#.*\n", "", inspect.cleandoc(table), flags=re.MULTILINE)
    found = []
    for entry in re.split(r"\n(?=\S)", text):
        line, *but = _BUT.split(" ".join(entry.split()))
        bounds, *words = (cell.strip() for cell in line.split("|"))
        read = _BOUNDS.fullmatch(bounds)
        if read is None or not 1 <= len(words) <= 3:
            raise ValueError(f"this is no claim: {line}")
        low, high = (
            float(read[name] or read["equal"] or limit)
            for name, limit in (("low", -math.inf), ("high", math.inf))
        )
        says, paper, fails = [*words, "", ""][:3]
        cause, where = (but[2], (float(but[0]), float(but[1]))) if but else ("", Claim.found)
        found.append(Claim(says, read["figure"], low, high, bounds, paper, fails, cause, where))
    return tuple(found)


@dataclass(frozen=True)
class Outcome:
    """What a run found: the picture's panels, and named numbers."""

    panels: Sequence[Panel]
    figures: Mapping[str, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        object.__setattr__(self, "figures", {name: float(value) for name, value in self.figures.items()})


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several claims together."""
    return max(verdicts, key=VERDICTS.index, default="holds")


@dataclass(frozen=True)
class Figure:
    """One figure of a paper, several that share a run, or what goes beyond the papers.

    Attributes:
        source: The paper and its figure.
        says: What the figure shows, in one or two sentences; the caption.
        measure: Runs it; a function at the top of a module, so that other processes find it.
        broken: Engines that lack something, by name: what stands in its place.
        small: Parameters of a run of seconds.
        wall: Measures real time, so its numbers are the machine's, and nothing may run beside it.
        policies: Whether ``Settings.policy`` adds a curve.
    """

    id: str
    title: str
    source: str
    says: str
    measure: Callable[[Settings], Outcome] = field(repr=False)
    claims: tuple[Claim, ...]
    parameters: tuple[Parameter, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    small: Mapping[str, float] = field(default_factory=dict)
    wall: bool = False
    policies: bool = False

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.id}: a run that claims nothing shows nothing")
        for claim in self.claims:
            if claim.fails and claim.fails not in self.broken:
                raise ValueError(f"{self.id}: {claim.says}: {near(claim.fails, self.broken)}")
        self.settings(overrides=self.small)

    def settings(
        self,
        seed: int = 0,
        overrides: Mapping[str, float] | None = None,
        ablated: str = "",
        policy: Callable[[], Policy] | None = None,
    ) -> Settings:
        """Return checked settings: the defaults but for ``overrides``.

        Raises:
            OptionError: The seed is no whole number from 0 on, a parameter is unknown or out of its range,
                there is no broken engine of that name, or the figure shows no policies.
        """
        if ablated and ablated not in self.broken:
            raise OptionError(f"{self.id} has no broken engine {ablated!r}: {near(ablated, self.broken)}")
        if not 0 <= seed <= MAX_SEED:
            raise OptionError(f"seed is {seed!r}: expected a whole number from 0 to {MAX_SEED:,}")
        if policy is not None and not self.policies:
            raise OptionError(f"{self.id} compares no policies: take --policy with one that does")
        known = {parameter.name: parameter for parameter in self.parameters}
        values = {**{name: each.default for name, each in known.items()}, **(overrides or {})}
        for name in values:
            if name not in known:
                raise OptionError(f"{self.id} has no parameter {name!r}: {near(name, known)}")
        try:
            checked = {name: known[name].check(value) for name, value in values.items()}
        except OptionError as error:
            raise OptionError(f"{self.id}: {error}") from None
        return Settings(seed, checked, ablated, policy)

    def changed(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the parameters that are not the defaults."""
        return {p.name: values[p.name] for p in self.parameters if values[p.name] != p.default}


FIGURES: dict[str, Figure] = {}
"""Of the modules that have been imported, by id."""

Measure = Callable[[Settings], Outcome]


def figure(name: str, source: str, claims: str, **more: Any) -> Callable[[Measure], Measure]:
    """Make a figure of the function below, which measures it.

    The function's docstring begins with the figure's title and its caption, a paragraph each. What follows
    is for readers of the code.
    """

    def add(measure: Measure) -> Measure:
        title, says, *_ = inspect.cleandoc(measure.__doc__ or "").split("\n\n")
        says = " ".join(says.split())
        FIGURES[name] = Figure(
            name, title.removesuffix("."), source, says, measure, claims_of(claims), **more
        )
        return measure

    return add
