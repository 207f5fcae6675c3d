"""How many cells an exchange has."""

from __future__ import annotations

import pytest

from millrace.options import Options
from millrace.spark.placement import CELL_BYTES, Size, place
from tests.spark.test_hypercube import spec_of


@pytest.mark.parametrize(
    ("bytes_each", "splits", "cells"),
    [
        (CELL_BYTES // 8, None, 4),
        (10 * CELL_BYTES, None, 20),
        (10**6 * CELL_BYTES, None, 50),
        (200 * CELL_BYTES, 8, 400),
    ],
)
def test_estimates_of_spark_ask_for_no_more_cells_than_spark_takes_partitions(bytes_each, splits, cells):
    """They multiply at every join, so a tiny one may be taken for a terabyte; a file's size is known."""
    join = spec_of(2, [(0, "a", 1, "b")])
    sizes = [Size(10**6, bytes_each, splits, distinct=False)] * 2
    options = Options(placement="hypercube")
    assert place(join, sizes, options, parallelism=4, partitions=50).cells == cells
