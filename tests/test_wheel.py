"""The wheel in a fresh environment outside the repository, and each of its extras missing in turn."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATIENCE = 200
# What an extra brings, a command that needs it, and the name of the extra in the message.
EXTRAS = [
    ("matplotlib", ["experiment", "run", "eddies-fig4", "--out", "out"], "experiments"),
    ("tpchgen_cli", ["demo", "--data", "data"], "bench"),
    ("duckdb", ["bench", "kernel", "--quick", "--against", "duckdb"], "bench"),
    ("polars", ["bench", "kernel", "--quick", "--against", "polars"], "bench"),
    ("grpc", ["sql", "select 1", "--remote", "local[1]"], "connect"),
    ("google", ["demo", "--stream", "--seconds", "1", "--master", "local[1]"], "streams"),
    ("httpx", ["sql", "select p.x from p where p.k = 1", "--lookup", "p=p.toml"], "lookups"),
]
HIDING = """
import importlib.util, sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

HIDDEN = sys.argv.pop(1).split(",")
sys.meta_path.insert(0, Hidden())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in HIDDEN else found(name, *more)
from millrace.cli.app import main
sys.argv[0] = "millrace"
main()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    """The Python of an environment that has the wheel, and dependencies from the one that runs the tests."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", folder, ROOT], check=True, timeout=PATIENCE, cwd=folder)
    (wheel,) = folder.glob("millrace-*.whl")
    venv.create(folder / "fresh", with_pip=False)
    (packages,) = (folder / "fresh").glob("lib/python*/site-packages")
    own = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, wheel]
    subprocess.run(own, check=True, timeout=PATIENCE, cwd=folder)
    # Behind the wheel, and as a plain folder: the repository, which is linked there, is not seen.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return str(folder / "fresh" / "bin" / "python")


def run(python: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment outside the repository."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYSPARK_PYTHON": python, "COLUMNS": "400", "TERM": "dumb"}
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.slow
def test_the_wheel_answers_a_query(python, tmp_path):
    """From CSV files to a result and a report page; its own code runs in the tasks."""
    where = run(python, tmp_path, "-c", "import millrace; print(millrace.__file__)")
    assert str(ROOT) not in where.stdout and "fresh" in where.stdout, where.stderr
    (tmp_path / "a.csv").write_text("k,v\n1,x\n2,y\n")
    (tmp_path / "b.csv").write_text("k,w\n2,3\n")
    query = ["sql", "select v, w from a join b using (k)", "--table", "a=a.csv", "--table", "b=b.csv"]
    flags = ["--option", "take_all=true", "--report", "page.html", "--json", "-", "--master", "local[1]"]
    done = run(python, tmp_path, "-m", "millrace", *query, *flags)
    assert (done.returncode, done.stderr) == (0, "report page: page.html\n")  # of Spark's log nothing
    assert json.loads(done.stdout)["rows"] == [["y", 3]]
    assert "Millrace report" in (tmp_path / "page.html").read_text()[:1000]


@pytest.mark.parametrize(
    ("module", "arguments", "extra"), EXTRAS, ids=[f"{each[0]}-{each[1][0]}" for each in EXTRAS]
)
def test_a_missing_extra_is_named(python, tmp_path, module, arguments, extra):
    """One message with what to install, and no traceback; what needs no extra goes on working."""
    (tmp_path / "p.toml").write_text(
        'schema = "k bigint, x bigint"\nbind = ["k"]\n[http]\nurl = "http://localhost/{k}"\n'
    )
    done = run(python, tmp_path, "-c", HIDING, module, *arguments)
    assert done.returncode == 1, done.stdout
    assert f"pip install 'millrace[{extra}]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_without_any_extra_the_commands_are_there(python, tmp_path):
    """Lists and help need none of them."""
    hidden = "matplotlib,duckdb,polars,httpx,sqlalchemy,tpchgen_cli,grpc,aiohttp,psycopg,jsonpath"
    for arguments in (["experiment", "list"], ["bench", "--help"], ["sql", "--help"], ["doctor", "--help"]):
        done = run(python, tmp_path, "-c", HIDING, hidden, *arguments)
        assert done.returncode == 0, done.stderr
