"""Reads the queries in ``cases/``.

Entries of a file are separated by empty lines. An entry begins with its head, a comment; the rest is the
query. In ``small/`` the head says which blocks the query has: each as its relations in order, separated by
spaces, blocks by ``|``. ``none`` means that Spark runs the whole query. ``predicates.sql`` has what filters
stand for behind a semicolon, ``coercions.sql`` the blocks without ANSI rules behind a slash, ``settings.sql``
settings, and ``lookups/refused.sql`` reasons. In ``fuzz/``, ``values.sql`` and such each line is an entry.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "cases"
SMALL = sorted(path.stem for path in (FOLDER / "small").glob("*.sql"))


def read(name: str) -> list[tuple[str, str]]:
    """Return the head and the text of each query of a file, named without its ending."""
    entries = (FOLDER / f"{name}.sql").read_text().strip().split("\n\n")
    return [_parted(entry.rstrip("\n")) for entry in entries]


def lines(name: str) -> dict[str, list[str]]:
    """Return the lines of each entry of a file by its head."""
    return {head: text.splitlines() for head, text in read(name)}


def small() -> dict[str, tuple[str, str, str]]:
    """Return file, text and blocks of each query over the small tables, by a name for it."""
    return {
        f"{name}-{number}": (name, text, "" if blocks == "none" else blocks)
        for name in SMALL
        for number, (blocks, text) in enumerate(read(f"small/{name}"))
    }


def settings(text: str) -> dict[str, str]:
    """Read settings that are written ``key=value;key=value``."""
    return dict(pair.split("=") for pair in text.split(";") if pair)


def _parted(entry: str) -> tuple[str, str]:
    head, _, text = entry.partition("\n")
    return (head.removeprefix("-- ").strip(), text) if head.startswith("-- ") else ("", entry)
