"""``SELECT * FROM R, S, T WHERE R.a = S.a AND S.b = T.b`` (Avnur & Hellerstein 2000, section 4.3).

Values are uniform. R has 10,000 tuples, S 80,000, T 10,000, of 100 bytes each; columns that are not joined on
are left out. Which of both joins comes first matters for tuples of S alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lab.experiments.lab.block import block
from millrace.engine.spec import JoinSpec

RANGE = (500, 5500)
"""Values of R.a (table 1); those of S.a are 0 to 5000, so that a tuple of S meets 1.8 of R on the average."""

ORDERS = {"R⋈S first": ("R", "T"), "S⋈T first": ("T", "R")}
"""Static orders: an eddy that keeps to one join first. Tuples of S go to R, or to T."""


@dataclass(frozen=True)
class Version:
    """One version of the query.

    Attributes:
        name: For the legend.
        r_matches: Tuples of R that one of S meets: 1.8 as in table 1, or fewer where R.a and S.a are drawn
            from as many more values.
        t_matches: Tuples of T that one of S meets; at most 1.
        best: The better order.
        by_index: Whether S ⋈ T is an index join instead of a hash ripple join.
    """

    name: str
    r_matches: float
    t_matches: float
    best: str
    by_index: bool = False


THINNING = Version("R⋈S 100 %, S⋈T 20 %", 1.0, 0.2, "S⋈T first")
"""Where T should come first: the 20 % version of figure 8 with R and T exchanged."""


def tables(version: Version, scale: float, seed: int) -> dict[str, pa.Table]:
    """Draw the tables."""
    draw = np.random.default_rng(seed)
    r_size, s_size, t_size = (max(1, round(scale * rows)) for rows in (10_000, 80_000, 10_000))
    if version.r_matches == 1.8:
        low, high = (round(scale * bound) for bound in RANGE)
        r, s = draw.integers(low, high, r_size), draw.integers(0, high - low, s_size)
    else:
        values = round(r_size / version.r_matches)
        r, s = draw.integers(0, values, r_size), draw.integers(0, values, s_size)
    values = round(t_size / version.t_matches)
    return {
        "R": pa.table({"a": r}),
        "S": pa.table({"a": s, "b": draw.integers(0, values, s_size)}),
        "T": pa.table({"b": draw.permutation(t_size)}),
    }


def chain(data: Mapping[str, pa.Table]) -> JoinSpec:
    """Return the block."""
    return block(data, "R.a = S.a", "S.b = T.b")


def results(data: Mapping[str, pa.Table]) -> int:
    """Count the results."""
    a, b = (np.asarray(data["S"].column(name)) for name in "ab")
    meets_r = np.bincount(np.asarray(data["R"].column("a")), minlength=int(a.max()) + 1)
    meets_t = np.bincount(np.asarray(data["T"].column("b")), minlength=int(b.max()) + 1)
    return int((meets_r[a] * meets_t[b]).sum())
