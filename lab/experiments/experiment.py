"""What an experiment is: its claims, its parameters, and what a run of it gives back.

An experiment reproduces one figure of a paper. What it claims is stated before any run, as inequalities over
numbers that the run will return, each with its margin and where that comes from; ``docs/experiments.md`` has
them all. The run returns curves and numbers; it never judges, prints, draws or writes. Each claim names a
broken engine, the same run without some mechanism, that fails it: so it is known to look at the mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from millrace.errors import OptionError, near

DIFFERS: Literal["differs"] = "differs"
Verdict = bool | Literal["differs"]
MAX_SEED = 2**32 - 1
Numbers = Sequence[float] | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Parameter:
    """A number that a run may be given, from ``low`` to ``high``, as in ``--set name=value``.

    The default is the paper's, where it says; a whole number there asks for whole numbers. The unit is of the
    value, such as ``tuples``, and empty for none.
    """

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str

    def __post_init__(self) -> None:
        self.check(self.default)

    def check(self, value: float) -> float:
        """Return the value, as a whole number where the default is one.

        Raises:
            OptionError: It is out of range, or has a fraction and may not.
        """
        whole = isinstance(self.default, int)
        if type(value) in (int, float) and self.low <= value <= self.high and not (whole and value % 1):
            return int(value) if whole else float(value)
        given = f"{value:,g}" if type(value) in (int, float) else repr(value)
        kind = "a whole number" if whole else "a number"
        unit = f" {self.unit}" if self.unit else ""
        expected = f"{kind} from {self.low:,g} to {self.high:,g}{unit}"
        raise OptionError(f"{self.name} is {given}: expected {expected}")


@dataclass(frozen=True)
class Settings:
    """What one run is given: the seed of all random numbers, and values by parameter name.

    A value is an int where whole numbers are asked for, else a float. ``ablated`` is the name of the broken
    engine to run; empty for the whole one.
    """

    seed: int
    values: Mapping[str, float]
    ablated: str = ""

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
        object.__setattr__(self, "x", tuple(float(value) for value in self.x))
        object.__setattr__(self, "y", tuple(float(value) for value in self.y))
        if len(self.x) != len(self.y):
            raise ValueError(f"curve {self.name!r} has {len(self.x)} x and {len(self.y)} y")


@dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        x_label: With its unit, as ``y_label``.
        kind: How the curves are drawn; ``steps`` keeps a value until the next x, ``bars`` stand side by side.
        x_names: Names of x = 0, 1, 2, … in place of numbers, such as those of queries.
        marks: Moments to point out on the x axis, each a place and a few words.
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

    def __post_init__(self) -> None:
        for name in ("curves", "x_names", "marks"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @classmethod
    def over(
        cls,
        title: str,
        x_label: str,
        y_label: str,
        x: Numbers,
        curves: Mapping[str, Numbers],
        **more: Any,
    ) -> Panel:
        """Return a panel of curves over the same x, by their names."""
        return cls(title, x_label, y_label, [Curve(name, x, y) for name, y in curves.items()], **more)

    @classmethod
    def bars(cls, title: str, label: str, values: Mapping[str, float], curve: str = "", **more: Any) -> Panel:
        """Return a panel of one bar for each named value; the curve is called as the panel by default."""
        return cls.grouped(title, "", label, values, {curve or title: list(values.values())}, **more)

    @classmethod
    def grouped(
        cls,
        title: str,
        x_label: str,
        y_label: str,
        names: Iterable[str],
        curves: Mapping[str, Numbers],
        **more: Any,
    ) -> Panel:
        """Return a panel with a group of bars for each name, one bar of each curve."""
        names = list(names)
        return cls.over(
            title, x_label, y_label, range(len(names)), curves, kind="bars", x_names=names, **more
        )


@dataclass(frozen=True)
class Check:
    """A claim, judged: what was found, in words with numbers, and the broken engine that fails it."""

    claim: str
    holds: Verdict
    measured: str
    fails: str = ""


@dataclass(frozen=True)
class Claim:
    """An inequality that a figure of a paper comes down to, stated before the run.

    Attributes:
        says: The claim, in the paper's sense.
        figure: Name of the number that the run returns for it.
        low: The least that it may be, and ``high`` the most.
        margin: Where the bounds come from.
        fails: The broken engine that fails it, a key of :attr:`Experiment.broken`.
        cause: Where the paper's number is known not to come out, why; empty where it is expected to.
        found: The least and the most that the number is if that is the cause.
    """

    says: str
    figure: str
    low: float = -math.inf
    high: float = math.inf
    margin: str = ""
    fails: str = ""
    cause: str = ""
    found: tuple[float, float] = (math.inf, -math.inf)

    @property
    def inequality(self) -> str:
        """The bounds as a formula."""
        low, high = (f"{bound:.4g}" for bound in (self.low, self.high))
        if self.low == self.high:
            return f"{self.figure} = {low}"
        left = f"{low} ≤ " if self.low > -math.inf else ""
        return f"{left}{self.figure}{f' ≤ {high}' if self.high < math.inf else ''}"

    def judge(self, figures: Mapping[str, float]) -> Check:
        """Return the verdict on a run's numbers."""
        value = figures[self.figure]
        measured = f"{self.figure} is {value:.4g}, stated: {self.inequality}"
        if not self.low <= value <= self.high and self.cause and self.found[0] <= value <= self.found[1]:
            return Check(self.says, DIFFERS, f"{measured}; {self.cause}", self.fails)
        return Check(self.says, self.low <= value <= self.high, measured, self.fails)


@dataclass(frozen=True)
class Outcome:
    """What a run found: the figure, named numbers, and the claims, judged; a run itself returns none."""

    panels: Sequence[Panel]
    figures: Mapping[str, float]
    checks: Sequence[Check] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        object.__setattr__(self, "figures", {name: float(value) for name, value in self.figures.items()})

    @property
    def holds(self) -> Verdict:
        """Whether every claim holds; ``"differs"`` if some do not, all of them for known causes."""
        return worst(check.holds for check in self.checks)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several claims together."""
    found = set(verdicts)
    return False if False in found else DIFFERS if DIFFERS in found else True


@dataclass(frozen=True)
class Experiment:
    """One figure of a paper, or what goes beyond it.

    Attributes:
        id: Such as ``eddies-fig4``.
        source: The paper, its section and figure.
        claim: What the figure shows, one or two sentences; the caption.
        claims: The same as inequalities.
        broken: Engines that lack something, by name: what stands in its place.
        parameters: Numbers that may be changed.
        measure: Runs it; a function at the top of a module, so that other processes find it.
        wall: Measures real time, so its figures are the machine's.
        small: Parameters of a run of seconds; the shape does not depend on them.
    """

    id: str
    title: str
    source: str
    claim: str
    claims: tuple[Claim, ...]
    broken: Mapping[str, str]
    parameters: tuple[Parameter, ...]
    measure: Callable[[Settings], Outcome] = field(repr=False)
    wall: bool = False
    small: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.claims:
            raise ValueError(f"{self.id}: a run that claims nothing shows nothing")
        for claim in self.claims:
            if claim.fails not in self.broken:
                raise ValueError(f"{self.id}: {claim.says}: {near(claim.fails, self.broken)}")

    @property
    def mechanism(self) -> str:
        """What is broken in the first of the broken engines."""
        return next(iter(self.broken.values()))

    def run(self, settings: Settings) -> Outcome:
        """Run it, and judge what was claimed."""
        found = self.measure(settings)
        return replace(found, checks=tuple(claim.judge(found.figures) for claim in self.claims))

    def settings(
        self,
        seed: int = 0,
        overrides: Mapping[str, float] | None = None,
        ablated: bool | str = False,  # noqa: FBT001, FBT002
    ) -> Settings:
        """Return checked settings: the defaults but for ``overrides``.

        Args:
            seed: Of all random numbers.
            overrides: Parameters by name.
            ablated: The broken engine to run; True for the first one there is.

        Raises:
            OptionError: The seed is no whole number from 0 on, a parameter is unknown or out of its range, or
                there is no broken engine of that name.
        """
        broken = next(iter(self.broken)) if ablated is True else ablated or ""
        if broken and broken not in self.broken:
            raise OptionError(f"{self.id} has no broken engine {broken!r}: {near(broken, self.broken)}")
        if type(seed) is not int or not 0 <= seed <= MAX_SEED:
            raise OptionError(f"seed is {seed!r}: expected a whole number from 0 to {MAX_SEED:,}")
        known = {parameter.name: parameter for parameter in self.parameters}
        given = {**{name: each.default for name, each in known.items()}, **(overrides or {})}
        for name in given:
            if name not in known:
                raise OptionError(f"{self.id} has no parameter {name!r}: {near(name, known)}")
        try:
            return Settings(seed, {name: known[name].check(value) for name, value in given.items()}, broken)
        except OptionError as error:
            raise OptionError(f"{self.id}: {error}") from None
