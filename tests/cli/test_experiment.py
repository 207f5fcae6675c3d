"""``millrace experiment`` from its arguments to its verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.experiments import registry
from lab.tests.experiments.frame_cases import experiment, failing
from millrace.cli.app import app
from tests.cli.conftest import SCREEN


@pytest.fixture
def ask(monkeypatch):
    """Run ``millrace experiment ARGUMENTS…`` over two small experiments, and one on the wall clock."""
    cases = (
        experiment("eddies-fig4"),
        experiment("eddies-fig5", small={"points": 8}),
        experiment("overheads-fig5", wall=True),
    )
    monkeypatch.setattr(registry, "EXPERIMENTS", {each.id: each for each in cases})
    return lambda *arguments: CliRunner(env=SCREEN).invoke(app, ["experiment", *map(str, arguments)])


def test_a_run_prints_its_figure_and_writes_its_files(ask, tmp_path):
    """Table, checks, figures; JSON, pictures and the page; exit code 0 since all holds."""
    out, path = tmp_path / "new" / "out", tmp_path / "all.json"
    result = ask("run", "eddies-fig5", "--seed", 3, "--set", "points=8", "--out", out, "--json", path)
    assert result.exit_code == 0, result.output
    assert "1 of 1: eddies-fig5" in result.stderr  # no terminal: lines in place of bars
    assert "holds: the line <rises> & more" in result.stdout and "time (s)" in result.stdout
    (told,) = json.loads(path.read_text())
    assert (told["id"], told["holds"], told["seed"]) == ("eddies-fig5", True, 3)
    assert told["figures"]["rise"] == 3.5
    assert {each.name for each in out.iterdir()} == {"eddies-fig5.png", "eddies-fig5.svg", "index.html"}
    assert "--seed 3 --set points=8" in (out / "index.html").read_text()


def test_seeds_go_into_the_table(ask, tmp_path):
    """So many runs of each, at the small size; the table has them beside each other."""
    path = tmp_path / "table.json"
    result = ask("run", "eddies-fig5", "--seeds", 3, "--seed", 4, "--small", "--table", path)
    assert result.exit_code == 0, result.output
    assert "3 of 3: eddies-fig5" in result.stderr
    (told,) = json.loads(path.read_text())
    assert (told["seeds"], told["figures"]["rise"], told["holds"]) == ([4, 5, 6], [3.5] * 3, [[True] * 3])
    assert "eddies-fig5" in path.with_suffix(".md").read_text()


def test_a_check_that_fails_is_the_exit_code(ask):
    """All runs are done and written; the message names the check, and is not among the JSON."""
    result = ask("run", "eddies-fig4", "eddies-fig5", "--ablate", "--jobs", 1, "--json", "-")
    assert result.exit_code == 1
    assert "does not hold: eddies-fig4: the line <rises> & more: rise is -9.5" in result.stderr
    assert [each["holds"] for each in json.loads(result.stdout)] == [False, False]


def test_a_run_that_fails_does_not_stop_the_others(ask, monkeypatch, tmp_path):
    """Its message is its verdict."""
    broken = experiment("eddies-fig4", measure=failing)
    monkeypatch.setitem(registry.EXPERIMENTS, "eddies-fig4", broken)
    path = tmp_path / "all.json"
    result = ask("run", "--all", "--jobs", 1, "--json", path)
    assert result.exit_code == 1
    assert "eddies-fig4: the mill has no water" in result.stderr
    told = json.loads(path.read_text())
    assert [(each["id"], each["holds"]) for each in told] == [("eddies-fig4", False), ("eddies-fig5", True)]


def test_all_leaves_out_the_wall_clock_unless_asked(ask, tmp_path):
    """--wall takes them in, in the papers' order."""
    path = tmp_path / "all.json"
    assert ask("run", "--all", "--jobs", 1, "--json", path).exit_code == 0
    assert [each["id"] for each in json.loads(path.read_text())] == ["eddies-fig4", "eddies-fig5"]
    assert ask("run", "--all", "--wall", "--jobs", 1, "--json", path).exit_code == 0
    assert [each["id"] for each in json.loads(path.read_text())][2:] == ["overheads-fig5"]


def test_the_list_shows_what_there_is(ask):
    """Ids with titles; of one that is named, claim and parameters."""
    result = ask("list")
    assert result.exit_code == 0
    assert "eddies-fig4" in result.stdout and "virtual" in result.stdout and "wall" in result.stdout
    result = ask("list", "eddies-fig4")
    assert "claim: A line rises" in result.stdout and "1,000" in result.stdout
    assert "broken engine falling: the line is turned round" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "eddies-fig"), "there is no experiment 'eddies-fig': did you mean 'eddies-fig"),
        (("list", "stairs"), "there is no experiment 'stairs': there is 'eddies-fig4', 'eddies-fig5'"),
        (("run",), "no experiment id: name some"),
        (("run", "eddies-fig4", "--all"), "both experiment ids and --all"),
        (("run", "overheads-fig5"), "overheads-fig5 measures real time: add --wall"),
        (("run", "eddies-fig4", "--seed", "-1"), "seed is -1: expected a whole number from 0"),
        (("run", "eddies-fig4", "--set", "points"), "--set 'points': expected NAME=NUMBER"),
        (("run", "eddies-fig4", "--set", "points=many"), "--set 'points=many': expected NAME=NUMBER"),
        (("run", "eddies-fig4", "--set", "points=nan"), "--set 'points=nan': expected NAME=NUMBER"),
        (
            ("run", "eddies-fig4", "--set", "points=5000"),
            "eddies-fig4: points is 5,000: expected a whole number from 2 to 1,000 points",
        ),
        (("run", "eddies-fig4", "--set", "pointz=5"), "has no parameter 'pointz': did you mean 'points'?"),
        (("run", "eddies-fig4", "--set", "slope=1", "--set", "slope=2"), "--set names 'slope' twice"),
        (("run", "eddies-fig4", "--out", __file__), "is a file: name a folder"),
        (("run", "eddies-fig4", "--seeds", "2", "--out", "x"), "pictures show one seed"),
        (("run", "eddies-fig4", "--ablate", "--table", "x"), "results of whole engines only"),
        (("run", "eddies-fig4", "--table", "no/where/x.json"), "there is no folder"),
        (("run", "eddies-fig4", "--json", "."), "is a folder; name a file"),
        (("run", "eddies-fig4", "--json", "no/where/x.json"), "there is no folder"),
    ],
)
def test_bad_input_is_one_sentence(ask, arguments, expected):
    """What was wrong, and what would work; nothing runs, and the exit code is 1."""
    result = ask(*arguments)
    assert result.exit_code == 1
    assert expected in result.stderr
    assert "Traceback" not in result.output and not result.stdout


def test_a_seed_that_is_no_number_is_refused(ask):
    """By the parser of arguments, with its exit code."""
    result = ask("run", "eddies-fig4", "--seed", "many")
    assert result.exit_code == 2
    assert "Invalid value for '--seed'" in result.stderr


def test_the_command_does_not_load_experiments_unasked():
    """Other commands start as fast as without them."""
    code = "import sys, millrace.cli.app; print([m for m in sys.modules if m.startswith('millrace.exp')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert Path(registry.__file__).is_file()


def test_the_list_as_json(ask):
    """Every experiment with its claim and its parameters, for programs."""
    result = ask("list", "--json", "-")
    assert result.exit_code == 0, result.stderr
    found = {each["id"]: each for each in json.loads(result.stdout)}
    assert set(found) == {"eddies-fig4", "eddies-fig5", "overheads-fig5"}
    assert found["eddies-fig4"]["parameters"][0].keys() >= {"name", "default", "low", "high"}
