"""``millrace doctor``, which tests/spark/session_checks.py runs elsewhere too, and ``millrace demo``."""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from rich.console import Console

from millrace.cli import demo
from millrace.cli.doctor import _folders
from millrace.errors import InputError
from millrace.reports.pages.files import GENERATOR
from tests.cli.conftest import LOCAL


def test_a_healthy_session(well):
    """Every finding is well, exit code 0, and the document says the same."""
    done = well("doctor", "--json", "-")
    found = json.loads(done.stdout)
    assert found["well"] is True
    needed = {"millrace on executors", "folder for compiled kernels", "coordinator reached by tasks"}
    assert needed <= {one["check"] for one in found["findings"]}
    assert not [one for one in found["findings"] if one["advice"]]
    assert "all is well" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--limits-host no-such-host.invalid", "coordinator reached by tasks: no-such-host.invalid"),
        # Said at once: Spark's own client would try for minutes.
        ("--remote sc://127.0.0.1:1", "Spark Connect server: 127.0.0.1:1 does not answer"),
    ],
)
def test_what_is_not_reached(run, arguments, found):
    """What it is needed for, and the option to set; the rest is well."""
    done = run("doctor", *arguments.split())
    assert done.exit_code == 1
    assert f"TO DO  {found}" in done.stdout and "1 thing to do" in done.stdout
    assert ("set the option limits_host" in done.stdout) == ("limits-host" in arguments)


@pytest.mark.nightly
def test_executors_with_another_python(start, tmp_path):
    """Packages that they lack are named, with the version to install; a folder nobody can write is too."""
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")
    done = start("doctor", *LOCAL, PYSPARK_PYTHON=python)
    assert done.returncode == 1, done.stderr
    assert f"executors: 1 seen, Python {sys.version.split()[0]}, {python}" in done.stdout
    for package in ("pyarrow", "numpy", "pandas", "numba"):
        assert f"TO DO  {package} on executors: missing" in done.stdout
    assert "Arrow batches: fails" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_that_cannot_be_written_is_told():
    """Where compiled kernels are kept nowhere, the variable to set is named."""
    assert _folders([{"kernels": "/a"}, {"kernels": "/b"}]).found == "/a, /b"
    told = _folders([{"kernels": "/a"}, {"kernels": ""}])
    assert not told.well and "NUMBA_CACHE_DIR" in told.advice


@pytest.mark.nightly
def test_the_demo_shows_both_sides_and_a_page(well, tpch_tiny):
    """Same rows, a link to the report page of a query, and all of it as JSON."""
    folder = Path(tpch_tiny["orders"]).parent
    done = well("demo", "--scale", "0.01", "--data", str(folder), "--json", "-")
    sides = json.loads(done.stdout)
    assert {side["name"] for side in sides} == {"filter", "stairs", "q05"}
    assert all(side["unequal"] is None and side["report"]["totals"]["cells"] for side in sides)
    link = next(word for word in done.stderr.split() if word.startswith("file://"))
    assert GENERATOR in Path(unquote(urlparse(link).path)).read_text()[:1000]


def test_rows_are_compared_as_multisets():
    """However they are ordered; floats within a rounding, everything else exactly."""
    rows = [(1, 0.1 + 0.2, None), (1, 0.5, "x"), (1, 0.5, "x")]
    assert demo.difference(reversed(rows), [(1, 0.3, None), *rows[1:]]) is None
    assert demo.difference(rows, rows[:2]) == "3 rows, not 2"
    for other in ((1, 0.30001, None), (2, 0.3, None), (1, 0.3, "None"), (1, None, None)):
        assert demo.difference(rows, [other, *rows[1:]]) is not None


def test_a_folder_of_others_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="name an empty folder"):
        demo.prepare(0.01, tmp_path, Console())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
