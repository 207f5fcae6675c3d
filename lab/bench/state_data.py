"""Data of the join state benchmark: Parquet files, made once with fixed seeds and kept in a cache folder.

Every table is written in the order in which its tuples arrive. A *half* is the first or the second half of
every table: the keys of one half do not occur in the other, so that what joins with what changes half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.bench.tpch_data import ensure, kept
from millrace.cli.demo import cache_folder

Array = np.ndarray[Any, np.dtype[np.int64]]
Tables = Mapping[str, pa.Table]

VERSION = 2
"""To be raised when tables are made differently: folders of an earlier version are not used any more."""

ROW_GROUP = 262_144
"""Rows; whole numbers of the chunks that tables are read in."""

_SEED = 20_040
_FANS = (0.2, 3.0)
"""Matches of a tuple in a neighbour, from and to, where they are random."""

_EACH = 5
"""Matches of a drifting tuple where it has any."""

_NARROW, _WIDE = 0.5, 24.0
"""Matches of a triangle's tuple along a good edge and along a bad one, beside its own triangle's."""


def files(name: str, aliases: Sequence[str], make: Callable[[], Tables]) -> dict[str, str]:
    """Return the paths of a data set's tables by alias, making all of them first where there are none."""

    def write(folder: Path) -> None:
        for alias, table in make().items():
            pq.write_table(table, folder / f"{alias}.parquet", row_group_size=ROW_GROUP)

    return kept(cache_folder(f"state-{VERSION}-{name}"), aliases, write)


def drift(rows: int, seed: int = _SEED) -> Tables:
    """Return R(a), S(a, b), T(b): each S tuple joins 5 of R and none of T, in the second half reversed.

    Deshpande & Hellerstein 2004, section 5.4.
    """
    draw = np.random.default_rng(seed)
    half = rows // 2
    values = max(1, half // _EACH)

    def column(*domains: int) -> Array:
        sizes = (half, rows - half)
        return np.concatenate(
            [3 * draw.integers(0, values, n) + d for d, n in zip(domains, sizes, strict=True)]
        )

    # Domains of the same number meet, within an attribute. All lie in the same range, so that no bounds of
    # keys tell them apart.
    return {
        "r": pa.table({"a": column(0, 1)}),
        "s": pa.table({"a": column(0, 2), "b": column(0, 1)}),
        "t": pa.table({"b": column(2, 1)}),
    }


def star(rows: int, rays: int = 4) -> Tables:
    """Return ``h(k1, …)`` and ``d1(k1)``, …: a hub's tuple finds 0.2 to 3 tuples in each of the others."""
    draw = np.random.default_rng([_SEED, rays])
    keys = {f"k{i}": _domain(rows, fan) for i, fan in enumerate(_fans(draw, rays), 1)}
    tables = {"h": pa.table({key: draw.integers(0, size, rows) for key, size in keys.items()})}
    for number, (key, size) in enumerate(keys.items(), 1):
        tables[f"d{number}"] = pa.table({key: draw.integers(0, size, rows)})
    return tables


def path(rows: int, edges: int = 4) -> Tables:
    """Return ``p1(k1)``, ``p2(k1, k2)``, …: a tuple finds 0.2 to 3 tuples in each of its neighbours."""
    draw = np.random.default_rng([_SEED, 10 * edges])
    sizes = [_domain(rows, fan) for fan in _fans(draw, edges)]
    return {
        f"p{i + 1}": pa.table(
            {f"k{k + 1}": draw.integers(0, sizes[k], rows) for k in (i - 1, i) if 0 <= k < edges}
        )
        for i in range(edges + 1)
    }


def triangle(rows: int) -> Tables:
    """Return R(a, b), S(b, c), T(c, a): many tuples agree in ``c``, in the second half in ``a`` and ``b``.

    A spanning tree without ``c`` serves the first half, and none but the two with ``c`` the second. Each
    half is made of triangles, whose corners arrive at different times.
    """
    draw = np.random.default_rng([_SEED, 3])
    halves = []
    for half, n in enumerate((rows // 2, rows - rows // 2)):
        fans = {key: _WIDE if (key == "c") == (half == 0) else _NARROW for key in "abc"}
        keys = {key: 2 * draw.integers(0, _domain(n, fan), n) + half for key, fan in fans.items()}
        turns = {alias: draw.permutation(n) for alias in "rst"}
        halves.append({(alias, key): keys[key][turns[alias]] for alias in turns for key in keys})

    def table(alias: str, *columns: str) -> pa.Table:
        return pa.table({c: np.concatenate([half[alias, c] for half in halves]) for c in columns})

    return {"r": table("r", "a", "b"), "s": table("s", "b", "c"), "t": table("t", "c", "a")}


def fig7(scale: float) -> dict[str, str]:
    """Return the paths of TPC-H's customer and orders, and of a lineitem in the order of its ship dates.

    Deshpande & Hellerstein 2004, section 5.2.

    Raises:
        MillraceError: TPC-H data cannot be made.
    """
    tables = ensure(scale)

    def make() -> Tables:
        table = pq.read_table(tables["lineitem"], columns=["l_shipdate", "l_orderkey", "l_linenumber"])
        by = [(name, "ascending") for name in table.column_names]
        return {"lineitem": table.sort_by(by).select(["l_orderkey", "l_shipdate"])}

    by_date = files(f"fig7-{scale:g}", ("lineitem",), make)
    return {"customer": tables["customer"], "orders": tables["orders"], **by_date}


def _fans(draw: np.random.Generator, number: int) -> Any:
    """Return random fan-outs, one in each of so many parts of what is possible, in random order."""
    low, high = np.log(_FANS)
    return np.exp(low + (high - low) * (draw.permutation(number) + draw.random(number)) / number)


def _domain(rows: int, fan: float) -> int:
    """Return of how many values random keys are taken so that each finds ``fan`` among ``rows`` others."""
    return max(1, round(rows / fan))
