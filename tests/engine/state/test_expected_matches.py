"""What a SteM expects a tuple to find in it, against what tuples find, while it fills and when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.engine.architectures.stems import stems_of
from millrace.engine.arrivals.paths import Paths
from millrace.engine.graph import QueryGraph
from millrace.engine.state.stem import SteM, singletons
from millrace.engine.tuples import Signature
from tests.engine.eddy.blocks import block

ROWS, KEYS = 4000, 100
HALF = ROWS // 2


def stem(keys: Sequence[int], rows: int | None, **sizes: Any) -> SteM:
    """The SteM of s after some tuples of it have come; sizes are what it has been told."""
    tables = {alias: pa.table({"k": pa.array(keys, pa.int64())}) for alias in "rs"}
    spec = block(tables, ["r.k = s.k"]).spec
    spec = replace(spec, relations=tuple(replace(r, rows=rows, **sizes) for r in spec.relations))
    graph = QueryGraph.of(spec)
    made = stems_of(spec, graph, Paths.scans(graph))[1]
    for batch in tables["s"].to_batches(max_chunksize=50):
        made.build(singletons(made, batch, "s", built=False), None)
    return made


def expected(made: SteM) -> float:
    return made.expected_matches(Signature(1))


def drawn(seed: int, keys: int = KEYS) -> list[int]:
    values: list[int] = np.random.default_rng(seed).integers(0, keys, ROWS).tolist()
    return values


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rows", [ROWS, None, 64 * ROWS])
@pytest.mark.parametrize("came", [250, 500, 1000, 3000])
def test_what_is_found_while_tuples_come_is_no_share_of_those_to_come(
    seed: int, rows: int | None, came: int
) -> None:
    """Of keys in no order a tuple finds all that have come, whatever is told of how many still will."""
    assert expected(stem(drawn(seed)[:came], rows)) == pytest.approx(came / KEYS, rel=0.25)


@pytest.mark.parametrize("came", [250, 500, HALF])
def test_keys_that_come_together_are_found_by_few(came: int) -> None:
    """Those of a key come one after the other, so that most tuples find theirs not there yet."""
    together = sorted(drawn(1))
    found = np.mean([together[:came].count(key) for key in drawn(2)])
    assert expected(stem(together[:came], ROWS)) == pytest.approx(found, rel=0.25)


@pytest.mark.parametrize("came", [10, HALF, ROWS])
def test_unique_keys_are_found_as_far_as_they_have_come(came: int) -> None:
    keys = np.random.default_rng(3).permutation(ROWS)[:came].tolist()
    assert expected(stem(keys, ROWS)) == pytest.approx(came / ROWS)
    assert expected(stem(keys, None)) == pytest.approx(0.5), "as many again are to come"


def test_a_filter_has_left_a_share_of_what_is_complete() -> None:
    """Half of the rows have passed: whatever was estimated, a tuple finds its match in one case of two."""
    for passing in (1.0, 0.5, 0.1):
        made = stem(range(HALF), round(passing * ROWS), passing=passing)
        made.complete = True
        assert expected(made) == pytest.approx(0.5)


def test_a_filter_leaves_the_estimated_share_of_what_is_coming() -> None:
    assert expected(stem(drawn(0)[:1000], ROWS // 4, passing=0.25)) == pytest.approx(2.5, rel=0.25)
