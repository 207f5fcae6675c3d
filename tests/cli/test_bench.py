"""``millrace bench`` from its arguments to its figures."""

from __future__ import annotations

import json

import pytest

from lab.benchmarks import harness


@pytest.fixture(autouse=True)
def _one_round(monkeypatch):
    """What is measured is told by one round as well as by five, though nobody should believe its figures."""
    monkeypatch.setattr(harness, "MIN_ROUNDS", 1)


def test_predicates_are_measured_against_spark(run, tmp_path):
    """A tiny run of one case prints its tables and writes the figures; what it missed does not fail it."""
    path = tmp_path / "predicates.json"
    result = run(
        *("bench", "predicates", "--against", "spark", "--cases", "f", "--scale", "0.001", "--rounds", "1"),
        "--json",
        str(path),
    )
    assert result.exit_code == 0, result.output
    assert "f_time_spark_ratio" in result.stdout
    written = json.loads(path.read_text())
    assert (written["bench"], written["scale"], written["rounds"]) == ("predicates", 0.001, 1)
    assert set(written["figures"]) == {
        "f_calls_oracle_ratio",
        "f_time_oracle_ratio",
        "f_time_spark_ratio",
        "aa_ratio",
    }
    calls = {row["side"]: row["calls_1"] for row in written["rows"]}
    assert calls == dict.fromkeys(("spark", "spark again", "oracle", "default"), 20)


def test_join_state_is_measured(run, tmp_path, monkeypatch):
    """A tiny run of two cases prints its tables and writes the figures."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "state.json"
    arguments = ("--cases", "star5,migrate", "--scale", "0.001", "--rounds", "1")
    result = run("bench", "state", *arguments, "--json", str(path))
    assert result.exit_code == 0, result.output
    assert "eddyjoins_worst_ratio" in result.stdout
    written = json.loads(path.read_text())
    assert (written["bench"], written["scale"], written["rounds"]) == ("state", 0.001, 1)
    assert set(written["figures"]) == {
        "star5_static_ratio",
        "eddyjoins_worst_ratio",
        "auto_worst_ratio",
        "migrate_ratio",
        "aa_ratio",
    }
    assert {row["side"] for row in written["rows"] if row["case"] == "migrate"} == {"routing", "settle"}
    rows = {row["rows"] for row in written["rows"] if row["case"] == "star5"}
    assert len(rows) == 1 and rows != {0}


def test_an_unknown_case_of_join_state_is_named(run):
    """One sentence, and what is there."""
    result = run("bench", "state", "--cases", "fig8")
    assert result.exit_code == 1
    assert "cases has 'fig8'" in result.output and "fig7" in result.output


def test_growth_is_measured(run, tmp_path, monkeypatch):
    """Of two sizes that differ by ten times; the larger one has no control."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "growth.json"
    result = run(
        "bench", "growth", "--queries", "3", "--scale", "0.001", "--rounds", "1", "--json", str(path)
    )
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert {"growth_ratio", "memory_ratio", "larger_ratio", "aa_ratio"} < set(written["figures"])
    (row,) = written["rows"]
    assert row["query"] == "q03" and row["equal"] and row["spark_growth"] > 0 < row["larger_mb"]


def test_the_start_of_a_worker_is_measured(run, tmp_path):
    """Of a filter and of a join, each in a process of its own."""
    path = tmp_path / "start.json"
    result = run("bench", "start", "--rounds", "1", "--json", str(path))
    assert result.exit_code == 0, result.output
    figures = json.loads(path.read_text())["figures"]
    assert set(figures) == {"first_filter_s", "first_join_s"} and min(figures.values()) > 0


def test_what_tasks_share_is_measured(run):
    """The coordinator in a process of its own, and permits taken from it; nothing stands beside the JSON."""
    result = run("bench", "coordination", "--quick", "--rounds", "1", "--json", "-")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)["figures"]
    assert set(figures) == {"permits_per_s", "permit_p99_ms", "memory_mb"}
    assert min(figures.values()) > 0
