"""``%%millrace``: a cell of SQL, with the flags of sparksql-magic and what Millrace has to tell."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from millrace.api.session import Session
from millrace.errors import InputError, MillraceError
from millrace.spark.session import session_of

if TYPE_CHECKING:
    import pandas as pd


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"%%millrace: {message}; {self.format_usage().strip()}")


def _parser() -> _Parser:
    parser = _Parser(prog="%%millrace", add_help=False, description="Answer the SQL of a cell.")
    parser.add_argument("variable", nargs="?", help="keep the DataFrame under this name, and show nothing")
    parser.add_argument("-c", "--cache", action="store_true", help="cache the DataFrame when it is read")
    parser.add_argument("-e", "--eager", action="store_true", help="cache the DataFrame now")
    parser.add_argument("-v", "--view", help="make a temporary view of this name")
    parser.add_argument("-l", "--limit", type=int, default=20, help="rows to show")
    parser.add_argument("--explain", action="store_true", help="show the plan, and run nothing")
    parser.add_argument("--report", action="store_true", help="show what the eddies did, below the rows")
    return parser


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic ``%%millrace``; called by ``%load_ext millrace``."""

    def millrace(line: str, cell: str) -> Any:
        try:
            return run(shell, line, cell)
        except (MillraceError, PySparkException) as error:
            # IPython shows what this returns, rather than frames that are none of the cell's.
            told = [f"{type(error).__name__}: {error}"]
            vars(error)["_render_traceback_"] = lambda: told
            raise

    millrace.__doc__ = _parser().format_help()
    shell.register_magic_function(millrace, "cell", "millrace")


def _find_named(variables: Mapping[str, Any], cell: str) -> dict[str, DataFrame]:
    """Return the DataFrames that a cell may name, of two that differ by case the one as written."""
    words = set(re.findall(r"\w+", cell))
    lower = {word.lower() for word in words}
    frames = {
        name: value
        for name, value in variables.items()
        if isinstance(value, DataFrame) and not name.startswith("_") and name.lower() in lower
    }
    written = {name.lower() for name in frames if name in words}
    return {name: frame for name, frame in frames.items() if name in words or name.lower() not in written}


def run(shell: Any, line: str, cell: str) -> Any:
    """Answer a cell.

    DataFrames of the notebook that the query names are its tables, unless the session has one of that name.
    Returned are rows as a DataFrame of pandas, an explanation, a report, or None where a variable or a view
    is made. InputError if a flag is unknown.
    """
    flags = _parser().parse_args(shlex.split(line))
    frames = _find_named(shell.user_ns, cell)
    spark = session_of(None, frames)
    frames = {name: frame for name, frame in frames.items() if not spark.catalog.tableExists(name)}
    query = Session(spark, frames).query(cell)
    if flags.explain:
        return query.explain()
    if flags.cache or flags.eager:
        query.df.cache()
    if flags.eager:
        query.df.count()
    if flags.view:
        query.df.createOrReplaceTempView(flags.view)
    if flags.variable:
        shell.user_ns[flags.variable] = query.df
    if flags.variable or flags.view:
        return None
    shown: pd.DataFrame = query.df.toPandas() if flags.report else query.df.limit(flags.limit).toPandas()
    if flags.report:
        import_module("IPython.display").display(shown.head(flags.limit))
        return query.report()
    return shown
