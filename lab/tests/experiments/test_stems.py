"""What the experiments on SteMs look at: when results come."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from lab.experiments.experiment import Curve
from lab.experiments.lab.block import block
from lab.experiments.lab.indexes import RemoteIndex
from lab.experiments.stems.watched import scan, table_r, table_t, until, watch
from millrace.limits.clock import VirtualClock


def test_results_are_timed_as_they_come() -> None:
    """A result's time is that of the later of its two tuples, or of the lookup that brought it."""
    draw = np.random.default_rng(0)
    tables = {"R": table_r(draw, 8, 4), "T": table_t(draw, 8)}
    spec = block(tables, "R.key = T.key", all_columns=True)
    came = {key: 0.5 * (place + 1) for place, key in enumerate(tables["T"]["key"].to_pylist())}
    r_came = {key: 0.1 * (place + 1) for place, key in enumerate(tables["R"]["key"].to_pylist())}

    clock = VirtualClock()
    r, t = scan("R", tables["R"], clock, 10.0), scan("T", tables["T"], clock, 2.0)
    hashed = watch(spec, clock, {"R": [r], "T": [t]})
    for when, key in zip(hashed.times, hashed.table["R_key"].to_pylist(), strict=True):
        assert math.isclose(when, max(came[key], r_came[key]))
    assert hashed.answer == {
        (key, a, key): 1 for key, a in zip(*(tables["R"][n].to_pylist() for n in ("key", "a")), strict=True)
    }

    clock = VirtualClock()
    index = RemoteIndex(["key"], tables["T"], clock, 1.0)
    joined = watch(spec, clock, {"R": [scan("R", tables["R"], clock, 10.0)], "T": [index]})
    assert np.allclose(joined.times, 0.1 + np.arange(1, 9))
    assert [key for _, key in joined.answered] == tables["R"]["key"].to_pylist()
    assert joined.answer == hashed.answer
    assert joined.share_at(0.5) == joined.times[3]
    assert joined.count(np.array([0.0, 1.2, 99.0])).tolist() == [0, 1, 8]


def test_a_run_without_results_has_a_table() -> None:
    """No column is gathered then, and the curve stays at nothing."""
    tables = {"R": pa.table({"key": [1, 2]}), "T": pa.table({"key": [3]})}
    clock = VirtualClock()
    access = {alias: [scan(alias, table, clock, 1.0)] for alias, table in tables.items()}
    found = watch(block(tables, "R.key = T.key", all_columns=True), clock, access)
    assert found.table.num_rows == 0
    assert found.curve("none") == Curve("none", (0, found.end), (0, 0))


def test_a_curve_is_cut_at_a_moment() -> None:
    """What is at the moment is in."""
    assert until(Curve("c", (0, 1, 2, 3), (5, 6, 7, 8)), 2) == Curve("c", (0, 1, 2), (5, 6, 7))
