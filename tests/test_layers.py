"""The layers hold: imports point downwards, and pyspark stays in the layers that may have it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def layer_of(path: Path) -> str:
    """``router/eddy.py`` is of the layer ``router``, ``spec.py`` of the layer ``spec``."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, bool, int]]:
    """Yield every import's full name, whether only a type checker sees it, and its line."""
    tree = ast.parse(path.read_text(), str(path))
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in guarded, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import; write it from millrace on"
            assert node.module is not None
            # ``from millrace import demo`` imports a module, ``from millrace import sql`` a function.
            if node.module == "millrace":
                for alias in node.names:
                    yield f"millrace.{alias.name}", id(node) in guarded, node.lineno
            else:
                yield node.module, id(node) in guarded, node.lineno


def target_layer(name: str) -> str:
    """The layer that ``millrace.x.y`` belongs to; names that are no module are the package's own."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in RANK else "__init__"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    """A module imports from its own layer and from layers below."""
    own = layer_of(path)
    assert own in RANK, f"{own} has no place among the layers: give it one in {Path(__file__).name}"
    for name, guarded, line in imports(path):
        if name.split(".")[0] != "millrace" or guarded:
            continue
        other = target_layer(name)
        if own == "__init__":
            continue  # its functions load the front when they are called
        assert RANK[other] <= RANK[own], f"{path}:{line}: {own} imports {name}, which lies above it"
        assert own not in ALONE or other == own, f"{path}:{line}: {own} imports {name}, it should stand alone"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pyspark_stays_at_the_top(path):
    """The engine runs without Spark; annotations may name Spark's types."""
    own = layer_of(path)
    for name, guarded, line in imports(path):
        if name.split(".")[0] not in ("pyspark", "py4j") or own in WITH_PYSPARK:
            continue
        assert guarded, f"{path}:{line}: {own} imports {name}"
        assert own in ANNOTATIONS_ONLY, f"{path}:{line}: {own} names Spark's types"


def test_every_layer_exists():
    """The list of layers names nothing that is gone."""
    assert set(RANK) == {layer_of(path) for path in FILES}


def test_the_engine_starts_without_spark_and_without_the_front():
    """Importing the package and the engine loads neither pyspark nor sqlglot."""
    code = (
        "import millrace, millrace.runs.run_of, millrace.sources, sys; "
        "print([m for m in ('pyspark', 'sqlglot') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
