"""The layers hold: imports point downwards, and pyspark stays in the layers that may have it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace

ROOT = Path(millrace.__file__).parent

# From the bottom up. Modules on one line may import each other and everything further up this list.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "budget", "figures", "clock", "applied", "peak"),
    ("coordination", "results"),
    ("predicates",),
    ("expressions", "options", "planned", "explanation"),
    ("run_report", "report_tables", "report_text", "comparison", "pages", "board", "fitting"),
    ("spec", "values"),
    ("aggregates",),
    ("kernels",),
    ("graph", "trees"),
    ("tuples", "relations", "sources"),
    ("statistics", "sampling", "operator"),
    ("state",),
    ("arrivals", "policies"),
    ("operators", "migration"),
    ("architectures",),
    ("router",),
    ("runs",),
    ("spill",),
    ("lookups",),
    ("llm",),
    ("block",),
    ("spark",),
    ("streams", "feeds"),
    ("standing",),
    ("front",),
    ("api",),
    ("__init__", "accessor"),  # what users import; its functions load the layers below when they are called
    ("experiments", "benchmarks", "demo", "demo_stream"),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
WITH_PYSPARK = {
    "accessor",
    "api",
    "front",
    "spark",
    "streams",
    "feeds",
    "standing",
    "cli",
    "experiments",
    "benchmarks",
    "demo",
    "demo_stream",
}
# Names of Spark's types in annotations, never loaded.
ANNOTATIONS_ONLY = {"block", "__init__"}
# Knows nothing of the rest, so that a kernel can be read and tested alone.
ALONE = {"kernels"}

FILES = sorted(path for path in ROOT.rglob("*.py"))


class Import(NamedTuple):
    """An import: of which layer, where, what, and whether only a type checker sees it."""

    layer: str
    place: str
    name: str
    guarded: bool


def layer_of(path: Path) -> str:
    """``router/eddy.py`` is of the layer ``router``, ``spec.py`` of the layer ``spec``."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    """Yield every import of a file; a relative one as the dots that it begins with."""
    tree = ast.parse(path.read_text(), str(path))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = "." * node.level + (node.module or "")
            # ``from millrace import demo`` imports a module, ``from millrace import sql`` a function.
            names = [f"millrace.{alias.name}" for alias in node.names] if whole == "millrace" else [whole]
        for name in names:
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield Import(layer_of(path), place, name, id(node) in guarded)


IMPORTS = [each for path in FILES for each in imports(path)]


def target_layer(name: str) -> str:
    """The layer that ``millrace.x.y`` belongs to; names that are no module are the package's own."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


def points_up(each: Import) -> bool:
    """Whether a module imports from a layer above its own, or should stand alone; or how is not clear."""
    if each.name.startswith("."):
        return True
    if each.name.split(".")[0] != "millrace" or each.guarded or each.layer == "__init__":
        return False  # functions of the package itself load the front when they are called
    other = target_layer(each.name)
    return RANK[other] > RANK[each.layer] or (each.layer in ALONE and other != each.layer)


def test_imports_point_downwards():
    """A module imports from its own layer and from layers below."""
    assert IMPORTS
    assert [each for each in IMPORTS if points_up(each)] == []


def has_pyspark(each: Import) -> bool:
    """Whether a module loads PySpark where it should not; annotations may name Spark's types."""
    if each.name.split(".")[0] not in ("pyspark", "py4j") or each.layer in WITH_PYSPARK:
        return False
    return not (each.guarded and each.layer in ANNOTATIONS_ONLY)


def test_pyspark_stays_at_the_top():
    """The engine runs without Spark."""
    assert [each for each in IMPORTS if has_pyspark(each)] == []


@pytest.mark.parametrize(
    ("layer", "name", "breaks"),
    [
        ("router", "millrace.spark.execute", points_up),
        ("router", ".front", points_up),
        ("kernels", "millrace.errors", points_up),
        ("router", "pyspark.sql", has_pyspark),
    ],
)
def test_what_breaks_the_layers_is_seen(layer, name, breaks):
    """The rules above refuse what they are about."""
    assert breaks(Import(layer, "", name, guarded=False))


def test_every_layer_exists():
    """Every module has a place among the layers, and the list of them names nothing that is gone."""
    assert set(RANK) == {layer_of(path) for path in FILES}


def test_the_engine_starts_without_spark_and_without_the_front():
    """Importing the package and the engine loads neither pyspark nor sqlglot."""
    code = (
        "import millrace, millrace.engine.runs.run_of, millrace.parquet, sys; "
        "print([m for m in ('pyspark', 'sqlglot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
