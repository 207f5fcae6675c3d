"""The wheel: what is in it; and nightly, in a fresh environment, that it works with each extra missing."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PATIENCE = 200
LOOKUP = 'schema = "k bigint, x bigint"\nbind = ["k"]\n[database]\nurl = "sqlite:///x"\ntable = "t"\n'
# What is missing, a command that needs it, and the extra that its message names.
MISSING = [
    ("typer", ["--version"], "cli"),
    ("rich", ["--version"], "cli"),
    ("jinja2", ["sql", "select 1", "--page", "page.html"], "report"),
    ("jinja2", ["demo", "--data", "data"], "demo"),
    ("", ["demo", "--data", "data"], "demo"),  # a program, which the fresh environment lacks
    ("grpc", ["sql", "select 1", "--remote", "local[1]"], "connect"),
    ("sqlalchemy", ["sql", "select p.x from p where p.k = 1", "--lookup", "p=p.toml"], "lookups"),
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
importlib.util.find_spec = lambda name, *more: None if name.split(".")[0] in HIDDEN else found(name, *more)
"""
COMMAND = "from millrace.cli.__main__ import main; sys.argv[0] = 'millrace'; main()"
# Filters and joins, on a Spark of their own; then what an extra is needed for, in the order of the messages.
PLAIN = """
import millrace
from millrace import *
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
ids = spark.range(12)
even, large = millrace.predicate(lambda id: id % 2 == 0), millrace.predicate(lambda id: id > 3)
tables = {"a": millrace.where(ids, even("id"), large("id")), "b": ids}
joined = millrace.sql("select a.id from a join b on a.id = b.id", tables=tables, options={"take_all": True})
print(sorted(row.id for row in joined.collect()))
print(millrace.report(joined).totals.output_tuples, millrace.report(joined)._repr_html_()[:5])

async def ask(id):
    return True

for needs in (
    lambda: millrace.report(joined).save("page.html"),
    lambda: millrace.monitor.live(),
    lambda: millrace.models.filter("Is {this} so?", model="m"),
    lambda: millrace.predicate(ask, kind="async"),
    lambda: millrace.predicate(lambda id: True, retries=1),
):
    try:
        needs()
    except millrace.MillraceError as error:
        print(type(error).__name__, str(error).partition("pip install ")[2].partition(",")[0])
print(sorted({name.split(".")[0] for name in sys.modules} & set(HIDDEN)))
spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(build, check=True, timeout=PATIENCE, cwd=ROOT, stdout=subprocess.DEVNULL)
    (made,) = folder.glob("millrace-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel) -> str:
    """The Python of an environment that has the wheel, and dependencies from the one that runs the tests."""
    fresh = wheel.parent / "fresh"
    venv.create(fresh, with_pip=False)
    (packages,) = fresh.glob("lib/python*/site-packages")
    own = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", packages, wheel]
    subprocess.run(own, check=True, timeout=PATIENCE, cwd=wheel.parent)
    # Behind the wheel, and as a plain folder: the repository, which is linked there, is not seen.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return str(fresh / "bin" / "python")


def run(python: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment outside the repository, where no other environment's programs are."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join(each for each in environment["PATH"].split(os.pathsep) if each != own)
    environment |= {"PYSPARK_PYTHON": python, "COLUMNS": "400", "TERM": "dumb", "PATH": path}
    return subprocess.run(
        [python, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.fixture(scope="module")
def extras(wheel) -> list[str]:
    """The modules that come with an extra, and not with the package alone."""
    with zipfile.ZipFile(wheel) as opened:
        metadata = message_from_bytes(opened.read("millrace-0.1.0.dist-info/METADATA"))
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    own = {canonicalize_name(each.name) for each in needs if "extra" not in str(each.marker)}
    only = {canonicalize_name(each.name) for each in needs} - own - {"millrace"}
    modules = packages_distributions().items()
    return sorted(module for module, owners in modules if set(map(canonicalize_name, owners)) <= only)


def test_the_wheel_has_the_package_alone(wheel):
    """No laboratory, no tests; types are told of, and what is no Python is there."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"millrace", "millrace-0.1.0.dist-info"}
    assert not [name for name in names if "test" in name.rsplit("/", 1)[-1]]
    for name in ("py.typed", "cli/demo_queries/stairs.sql", "report.css"):
        assert [each for each in names if each.startswith("millrace/") and each.endswith(name)], name


@pytest.mark.nightly
def test_the_wheel_answers_a_query(python, tmp_path):
    """From CSV files to a result and a report page; its own code runs in the tasks."""
    where = run(python, tmp_path, "-c", "import millrace; print(millrace.__file__)")
    assert str(ROOT) not in where.stdout and "fresh" in where.stdout, where.stderr
    (tmp_path / "a.csv").write_text("k,v\n1,x\n2,y\n")
    (tmp_path / "b.csv").write_text("k,w\n2,3\n")
    query = ["sql", "select v, w from a join b using (k)", "--table", "a=a.csv", "--table", "b=b.csv"]
    flags = ["--option", "take_all=true", "--page", "page.html", "--json", "-", "--master", "local[1]"]
    done = run(python, tmp_path, "-m", "millrace.cli", *query, *flags)
    assert (done.returncode, done.stderr) == (0, "report page: page.html\n")  # of Spark's log nothing
    assert json.loads(done.stdout)["rows"] == [["y", 3]]
    assert "Millrace report" in (tmp_path / "page.html").read_text()[:1000]


@pytest.mark.nightly
def test_filters_and_joins_need_no_extra(python, extras, tmp_path):
    """Nothing that an extra brings is loaded for them; what needs one says which."""
    assert {"aiohttp", "cryptography", "google", "grpc", "jinja2", "msgspec", "rich", "typer"} <= {*extras}
    assert not {"millrace", "numba", "numpy", "pandas", "pyarrow", "pyspark", "sqlglot"} & {*extras}
    (tmp_path / "plain.py").write_text(HIDING + PLAIN)
    done = run(python, tmp_path, "plain.py", ",".join(extras))
    assert done.stdout.splitlines() == [
        "[4, 6, 8, 10]",
        "4 <pre>",
        "MissingExtra 'millrace[report]'",
        "MissingExtra 'millrace[lookups]'",
        "MissingExtra 'millrace[lookups]'",
        "MissingExtra 'millrace[lookups]'",
        "MissingExtra 'millrace[lookups]'",
        "[]",
    ], done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(("module", "arguments", "extra"), MISSING)
def test_a_missing_extra_is_named(python, tmp_path, module, arguments, extra):
    """One message with what to install, and no traceback."""
    (tmp_path / "p.toml").write_text(LOOKUP)
    done = run(python, tmp_path, "-c", HIDING + COMMAND, module, *arguments)
    assert done.returncode == 1, done.stdout
    assert f"pip install 'millrace[{extra}]'" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("command", ["sql", "cache", "demo", "doctor"])
def test_help_needs_the_command_line_alone(python, extras, tmp_path, command):
    """Commands and their options are told without any other extra."""
    hidden = ",".join({*extras} - {"rich", "typer"})
    done = run(python, tmp_path, "-c", HIDING + COMMAND, hidden, command, "--help")
    assert done.returncode == 0, done.stderr
