"""The house holds: imports point downwards, and pyspark stays in the rooms that may have it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import millrace

ROOT = Path(millrace.__file__).parent

# From the ground up. A room imports from itself and from the floors below.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("options", "limits"),
    ("predicates",),
    ("engine",),
    ("parquet", "reports"),
    ("lookups",),
    ("spark",),
    ("streams",),
    ("sql",),
    ("api",),
    ("__init__",),  # what users import; it loads the floors below when they are first used
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
WITH_PYSPARK = {"api", "sql", "streams", "spark", "cli"}
# Names of Spark's types in annotations, never loaded.
ANNOTATIONS_ONLY = {"__init__", "reports"}

FILES = sorted(path for path in ROOT.rglob("*.py"))


class Import(NamedTuple):
    """An import: in which room, where, what, and whether only a type checker sees it."""

    room: str
    place: str
    name: str
    guarded: bool


def room_of(path: Path) -> str:
    """``engine/eddy/eddy.py`` is in the room ``engine``, ``errors.py`` is a room by itself."""
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
            # ``from millrace import errors`` imports a module, ``from millrace import sql`` a function.
            names = [f"millrace.{alias.name}" for alias in node.names] if whole == "millrace" else [whole]
        for name in names:
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield Import(room_of(path), place, name, id(node) in guarded)


IMPORTS = [each for path in FILES for each in imports(path)]


def target_room(name: str) -> str:
    """The room that ``millrace.x.y`` belongs to; names that are no module are the package's own."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in FLOOR else "__init__"


def points_up(each: Import) -> bool:
    """Whether a module imports from a floor that is not below its own, also for types alone."""
    if each.name.startswith("."):
        return True
    if each.name.split(".")[0] != "millrace":
        return False
    other = target_room(each.name)
    return other != each.room and FLOOR[other] >= FLOOR[each.room]


def leaves_kernels(each: Import) -> bool:
    """Whether a kernel imports from the rest of the engine: it can be read and tested alone."""
    kernel = each.place.startswith("engine/kernels/")
    return (
        kernel and each.name.startswith("millrace.") and not each.name.startswith("millrace.engine.kernels")
    )


def has_pyspark(each: Import) -> bool:
    """Whether a module loads PySpark where it should not; annotations may name Spark's types."""
    if each.name.split(".")[0] not in ("pyspark", "py4j") or each.room in WITH_PYSPARK:
        return False
    return not (each.guarded and each.room in ANNOTATIONS_ONLY)


def test_imports_point_downwards():
    """A room imports from itself and from the floors below, so there is no circle."""
    assert IMPORTS
    assert [each for each in IMPORTS if points_up(each) or leaves_kernels(each)] == []


def test_pyspark_stays_at_the_top():
    """The engine runs without Spark."""
    assert [each for each in IMPORTS if has_pyspark(each)] == []


@pytest.mark.broken_rule
@pytest.mark.parametrize(
    ("place", "name", "breaks"),
    [
        ("engine/eddy/eddy.py:1", "millrace.spark.execute", points_up),
        ("reports/page.py:1", "millrace.parquet.files", points_up),
        ("engine/eddy/eddy.py:1", ".front", points_up),
        ("engine/kernels/hashing.py:1", "millrace.errors", leaves_kernels),
        ("engine/eddy/eddy.py:1", "pyspark.sql", has_pyspark),
    ],
)
def test_what_breaks_the_house_is_seen(place, name, breaks):
    """The rules above refuse what they are about."""
    assert breaks(Import(place.split("/")[0], place, name, guarded=False))


def test_every_room_has_a_floor():
    """Every module is in a room that has its floor, and the list names nothing that is gone."""
    assert set(FLOOR) == {room_of(path) for path in FILES}
