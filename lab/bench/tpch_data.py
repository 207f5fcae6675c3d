"""TPC-H data as Parquet files, made once and kept in a cache folder, and the queries over them."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console

from millrace.cli import demo

QUERIES = Path(__file__).with_name("queries")
_HEAD = re.compile(r"^-- (\w+): .*$", re.MULTILINE)


def ensure(scale: float, folder: Path | None = None) -> dict[str, str]:
    """Return the paths of TPC-H's tables by name, made as for the demo where they are missing.

    Args:
        scale: TPC-H scale factor; 1 is about 350 MB of Parquet.
        folder: Where the files are or shall be; the cache folder by default.

    Raises:
        InputError: ``folder`` holds something else.
        SetupError: ``tpchgen-cli`` is not installed.
        ExecutionError: It failed.
    """
    return demo.prepare(scale, folder, Console(stderr=True))


def query_texts() -> dict[str, str]:
    """Return TPC-H's queries, ``q01`` to ``q22``, and that of the STAIRs paper's figure 7, ``stairs``."""
    return {
        path.stem: path.read_text().strip().removesuffix(";")
        for path in sorted((*QUERIES.glob("*.sql"), *demo.TEXTS.glob("*.sql")), key=lambda path: path.stem)
        if path.stem != "shapes"
    }


def shape_texts() -> dict[str, str]:
    """Return queries of many small blocks, and of what stands beside joins, by name."""
    _, *parts = _HEAD.split((QUERIES / "shapes.sql").read_text())
    return {name: text.strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}
