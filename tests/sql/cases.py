"""Reads the queries in ``cases/``.

Entries of a file are separated by empty lines. An entry begins with its head, a comment; the rest is the
query. In ``small/`` the head says which blocks the query has: each as its relations in order, separated by
spaces, blocks by ``|``. ``none`` means that Spark runs the whole query. ``predicates.sql`` has what filters
stand for behind a semicolon, ``settings.sql`` has settings, and ``lookups/refused.sql`` reasons.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "cases"
SMALL = sorted(path.stem for path in (FOLDER / "small").glob("*.sql"))


def read(name: str) -> list[tuple[str, str]]:
    """Return the head and the text of each query of a file, named without its ending."""
    entries = (FOLDER / f"{name}.sql").read_text().strip().split("\n\n")
    return [_parted(entry.rstrip("\n")) for entry in entries]


def small() -> dict[str, tuple[str, str, str]]:
    """Return file, text and blocks of each query over the small tables, by a name for it."""
    return {
        f"{name}-{number}": (name, text, "" if blocks == "none" else blocks)
        for name in SMALL
        for number, (blocks, text) in enumerate(read(f"small/{name}"))
    }


def _parted(entry: str) -> tuple[str, str]:
    head, _, text = entry.partition("\n")
    return (head.removeprefix("-- ").strip(), text) if head.startswith("-- ") else ("", entry)
