"""What writes a pipeline's rows: Millrace's writer, but Spark's where what is read may be overwritten.

Spark sees which files its own plan reads, and may refuse to overwrite them. It does not see what tasks read.
"""

from __future__ import annotations

import functools
import re
from os.path import normpath, realpath
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame

from millrace.api.optimize import plan_of
from millrace.spark.frames import ACTIONS
from millrace.spark.session import internal_query
from millrace.sql.session.errors import contain

_AT_PATHS = frozenset(("save", "parquet", "json", "csv", "text", "orc"))


def writer_of(df: DataFrame, plain: Any, better: Any) -> Any:
    """Return a writer of PySpark's, whose methods are called on two till it is known which of them writes.

    Args:
        df: The pipeline.
        plain: Spark's own writer of it.
        better: That of what Millrace makes of it.
    """
    kind: Any = type(plain)
    writer: Any = object.__new__(_writer_class(kind))
    writer.__dict__.update(vars(plain))
    writer.pipeline, writer.plain, writer.better, writer.overwrites = df, plain, better, False
    return writer


@functools.cache
def _writer_class(kind: type[Any]) -> type[Any]:
    """Return the class of such writers, of classic Spark or of Spark Connect."""
    names = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))]
    return type(kind.__name__, (kind,), {name: _method(kind, name) for name in names})


def _method(kind: type[Any], name: str) -> Any:
    @functools.wraps(getattr(kind, name))
    def method(self: Any, *args: Any, **named: Any) -> Any:
        given = [*args, *named.values()]
        self.overwrites |= any(isinstance(each, str) and each.lower() == "overwrite" for each in given)
        self.overwrites |= name == "insertInto" and bool(
            named.get("overwrite", args[1] if args[1:] else False)
        )
        if name not in ACTIONS["DataFrameWriter"]:
            for writer in (self.plain, self.better):
                getattr(writer, name)(*args, **named)
            return self
        path = named.get("path", args[0] if args else None) if name in _AT_PATHS else None
        is_safe = not self.overwrites or (isinstance(path, str) and not reads(self.pipeline, path))
        return getattr(self.better if is_safe else self.plain, name)(*args, **named)

    return method


def reads(pipeline: DataFrame, path: str) -> bool:
    """Tell whether files below a path may be among those of a pipeline."""
    try:
        with internal_query():
            if plan_of(pipeline).reads_cache:
                return True  # what was cached may come from any files
            files = [_plain(unquote(file)) for file in pipeline.inputFiles()]
    except Exception as error:  # noqa: BLE001  # Spark's own writer sees it, or fails in its own words
        contain(error)
        return True
    folders = {f"{each}/" for each in (_plain(path), realpath(_plain(path)))}
    return any(folder in each for file in files for each in (file, realpath(file)) for folder in folders)


def _plain(path: str) -> str:
    """Return a path without its store, and without steps that lead nowhere."""
    return normpath("/" + re.sub(r"^[\w+.-]+:", "", path).lstrip("/")) if ":" in path else normpath(path)
