"""What writes a pipeline's rows: Millrace's writer, but Spark's where what is read may be overwritten.

Spark sees which files its own plan reads, and may refuse to overwrite them. It does not see what tasks read.
"""

from __future__ import annotations

import re
from os.path import normpath, realpath
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, DataFrameWriter

from millrace.spark.frames import METHODS
from millrace.spark.plan_reader import AnalysedPlan

_AT_PATHS = frozenset(("save", "parquet", "json", "csv", "text", "orc"))


class PipelineWriter(DataFrameWriter):
    """A writer of PySpark's, whose methods are called on two others till it is known which of them writes.

    Args:
        df: The pipeline.
        plain: Spark's own writer of it.
        better: That of what Millrace makes of it.
    """

    def __init__(self, df: DataFrame, plain: DataFrameWriter, better: DataFrameWriter) -> None:
        self.__dict__.update(vars(plain))
        self._pipeline, self._plain, self._better = df, plain, better
        self._overwrites = False

    def _call(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        given = [*args, *named.values()]
        self._overwrites |= any(isinstance(each, str) and each.lower() == "overwrite" for each in given)
        self._overwrites |= name == "insertInto" and any(each is True for each in given)
        if name not in METHODS["DataFrameWriter"].runs:
            for writer in (self._plain, self._better):
                getattr(writer, name)(*args, **named)
            return self
        path = named.get("path", args[0] if args else None) if name in _AT_PATHS else None
        is_safe = not self._overwrites or (isinstance(path, str) and not self._reads(path))
        return getattr(self._better if is_safe else self._plain, name)(*args, **named)

    def _reads(self, path: str) -> bool:
        """Tell whether files below a path may be among those of the pipeline."""
        if "InMemoryRelation" in AnalysedPlan(self._pipeline).kinds:
            return True  # what was cached may come from any files
        folders = {f"{each}/" for each in (_plain(path), realpath(_plain(path)))}
        files = [_plain(unquote(file)) for file in self._pipeline.inputFiles()]
        return any(folder in each for file in files for each in (file, realpath(file)) for folder in folders)


def _plain(path: str) -> str:
    """Return a path without its store, and without steps that lead nowhere."""
    return normpath("/" + re.sub(r"^[\w+.-]+:", "", path).lstrip("/")) if ":" in path else normpath(path)


def _method(name: str) -> Any:
    def method(self: PipelineWriter, *args: Any, **named: Any) -> Any:
        return self._call(name, args, named)

    method.__name__ = name
    method.__doc__ = getattr(DataFrameWriter, name).__doc__
    return method


for _name in dir(DataFrameWriter):
    if not _name.startswith("_") and callable(getattr(DataFrameWriter, _name)):
        setattr(PipelineWriter, _name, _method(_name))
