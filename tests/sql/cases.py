"""Reads the queries in ``cases/*.sql``.

Entries are separated by empty lines. The first line of an entry says, as a comment, which blocks
the query has: each block as its relations in order, separated by spaces, blocks by ``|``. ``none``
means that Spark runs the whole query. The rest of the entry is the query.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "cases"


def read() -> dict[str, tuple[str, str]]:
    """Return ``(query, blocks)`` by a name made of the file's name and the place in it."""
    found = {}
    for path in sorted(FOLDER.glob("*.sql")):
        for number, entry in enumerate(path.read_text().strip().split("\n\n")):
            head, text = entry.split("\n", 1)
            blocks = head.removeprefix("-- ").strip()
            found[f"{path.stem}-{number}"] = (text.rstrip("\n"), "" if blocks == "none" else blocks)
    return found
