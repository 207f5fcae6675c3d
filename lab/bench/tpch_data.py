"""TPC-H data as Parquet files, made once and kept in a cache folder, and the queries over them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from millrace.cli import demo
from millrace.errors import InputError

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


def kept(folder: Path, names: Sequence[str], make: Callable[[Path], object]) -> dict[str, str]:
    """Return the paths of ``NAME.parquet`` in a folder, which is made whole or not at all.

    Args:
        folder: Where the files are or shall be.
        names: Of the tables.
        make: Writes all of them into the folder that it is given.

    Raises:
        InputError: ``folder`` is there and lacks a table.
    """
    paths = {name: folder / f"{name}.parquet" for name in names}
    if not folder.exists() or not any(folder.iterdir()):
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            make(beside)
            if folder.exists():
                folder.rmdir()
            beside.replace(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    if missing := [name for name, path in paths.items() if not path.is_file()]:
        raise InputError(
            f"{folder} is not empty and lacks {', '.join(missing)} (each as NAME.parquet): "
            "name an empty folder, or remove this one"
        )
    return {name: str(path) for name, path in paths.items()}


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
