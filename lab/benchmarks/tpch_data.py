"""TPC-H data as Parquet files, made once by ``tpchgen-cli`` and kept in a cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from millrace.errors import ExecutionError, InputError, SetupError

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = tuple(range(1, 23))


def cache_folder(scale: float) -> Path:
    """Return where data of that scale is kept by default."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "millrace" / f"tpch-{scale:g}"


def tables_in(folder: Path) -> dict[str, str]:
    """Return the path of each table's file in ``folder``, by table name."""
    return {name: str(folder / f"{name}.parquet") for name in TABLES}


def is_there(folder: Path) -> bool:
    """Tell whether every table's file is in ``folder``."""
    return all(Path(path).is_file() for path in tables_in(folder).values())


def ensure(scale: float, folder: Path | None = None) -> dict[str, str]:
    """Return the tables' paths by name, making the data first where it is missing.

    Args:
        scale: TPC-H scale factor; 1 is about 350 MB of Parquet.
        folder: Where the files are or shall be; the cache folder by default.

    Raises:
        InputError: ``folder`` is there and holds something else.
        SetupError: ``tpchgen-cli`` is not installed.
        ExecutionError: It failed.
    """
    target = folder or cache_folder(scale)
    if is_there(target):
        return tables_in(target)
    if target.exists() and any(target.iterdir()):
        missing = [name for name, path in tables_in(target).items() if not Path(path).is_file()]
        raise InputError(
            f"{target} is not empty and lacks {', '.join(missing)} (each as NAME.parquet): "
            "name an empty folder, or remove this one"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # Made beside and renamed, so that a folder with that name always holds all tables.
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _generate(scale, beside)
        if target.exists():
            target.rmdir()
        beside.replace(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return tables_in(target)


def _generate(scale: float, folder: Path) -> None:
    near = Path(sys.executable).with_name("tpchgen-cli")
    program = str(near) if near.exists() else shutil.which("tpchgen-cli")
    if program is None:
        raise SetupError("tpchgen-cli makes the TPC-H data: install it with pip install 'millrace[bench]'")
    command = [program, "parquet", "-s", f"{scale:g}", "-o", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not is_there(folder):
        raise ExecutionError(f"tpchgen-cli failed with exit code {done.returncode}: {done.stderr.strip()}")


def query_text(name: str) -> str:
    """Return the SQL of a query in ``benchmarks/queries``: ``q01`` to ``q22`` or ``stairs``.

    Raises:
        InputError: There is no such query.
    """
    source = files("lab.benchmarks") / "queries" / f"{name}.sql"
    if not source.is_file():
        raise InputError(f"there is no query {name!r}: expected q01 to q22, or stairs")
    return source.read_text().strip().removesuffix(";")
