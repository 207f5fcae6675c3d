"""``millrace bench`` from its arguments to its figures."""

from __future__ import annotations

import json

from millrace.benchmarks.harness import MIN_ROUNDS


def test_predicates_are_measured_against_spark(run, tmp_path):
    """A tiny run of one case prints its tables and writes the figures; what it missed does not fail it."""
    path = tmp_path / "predicates.json"
    result = run(
        *("bench", "predicates", "--against", "spark", "--cases", "f", "--scale", "0.001"),
        "--json",
        str(path),
    )
    assert result.exit_code == 0, result.output
    assert "f_time_spark_ratio" in result.stdout
    written = json.loads(path.read_text())
    assert (written["bench"], written["scale"], written["rounds"]) == ("predicates", 0.001, MIN_ROUNDS)
    assert set(written["figures"]) == {
        "f_calls_oracle_ratio",
        "f_time_oracle_ratio",
        "f_time_spark_ratio",
        "aa_ratio",
    }
    calls = {row["side"]: row["calls_1"] for row in written["rows"]}
    assert calls == dict.fromkeys(("spark", "spark again", "oracle", "default"), 20)
