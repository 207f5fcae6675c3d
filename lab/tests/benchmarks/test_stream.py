"""The joins of streams that are measured: both texts ask for the same rows, and feeds drift as told."""

from __future__ import annotations

import pytest

from lab.benchmarks.stream_cases import CASES, Case

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_chain_asks_for_the_same_rows(spark, tmp_path, name):
    """As a batch join by Spark, of a few micro-batches."""
    case = Case(CASES[name].streams, 300, CASES[name].drifts)
    for batch in range(4):
        case.write([tmp_path], batch, 4)
    for each in case.names:
        spark.read.parquet(str(tmp_path / each)).createOrReplaceTempView(each)
    rows = [
        sorted((r.k, r.t, round(r.total, 6)) for r in spark.sql(t).collect()) for t in (case.text, case.chain)
    ]
    assert rows[0] == rows[1] != []
    if case.drifts:
        keys = [
            spark.sql(f"SELECT max(k) FROM {n} WHERE t < '2020-09-13 12:27:40'").first()[0]
            for n in case.names[1:]
        ]
        assert keys[0] > keys[1]  # few match in the second stream, many in the third
    for each in case.names:
        spark.catalog.dropTempView(each)
