"""What a writer replaces, as its calls say, or an ``INSERT OVERWRITE``.

Spark empties a folder that is overwritten before tasks read anything. It refuses to overwrite tables that its
plan reads, but neither folders nor what Millrace's tasks read themselves.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from os.path import normpath, realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STATEMENT = re.compile(
    r"\bINSERT\s+OVERWRITE\s+(?:(?:LOCAL\s+)?DIRECTORY\s+(?:USING\b.*?\bpath['\"`]?[\s=]+)?(['\"])(.*?)\1|"
    r"(?:TABLE\s+)?((?:`[^`]*`|[\w.])+))",
    re.IGNORECASE | re.DOTALL,
)
_URI = re.compile(r"([A-Za-z][\w+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_follow = lru_cache(1024)(realpath)


class _Place(NamedTuple):
    """A file or folder in a store of some kind; without a ``host`` it is on Spark's default one."""

    kind: str
    host: str | None
    path: str

    def holds(self, other: _Place) -> bool:
        """Tell whether another place is this one or below it."""
        same = self.kind == other.kind and self.host in (None, other.host)
        return same and f"{other.path}/".startswith(f"{self.path.rstrip('/')}/")


@dataclass
class Overwriting:
    """What the calls of one ``DataFrameWriter`` say so far.

    Attributes:
        overwrites: Whether what is there is to be replaced.
    """

    overwrites: bool = False
    _folder: Any = None  # the option or argument ``path``
    _is_partitioned: bool = False
    _mode: Any = None  # of partitions, as an option says

    @classmethod
    def of_statement(cls, text: str) -> tuple[Overwriting, dict[str, Any]] | None:
        """Return what ``INSERT OVERWRITE`` says, and the arguments of the call that it stands for."""
        statement = _STATEMENT.search(text)
        if statement is None:
            return None
        _, folder, table = statement.groups()
        return cls(overwrites=True, _folder=folder), {} if table is None else {"tableName": table}

    def note(self, method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Note a call of a writer's method; returns its arguments by name."""
        try:
            given = inspect.signature(method).bind_partial(None, *args, **named).arguments
        except TypeError:
            return {}  # PySpark says what is wrong
        name = method.__name__
        mode = given.get("saveMode" if name == "mode" else "mode")
        if mode is not None:
            self.overwrites = str(mode).lower() == "overwrite"
        if given.get("overwrite") is not None:
            self.overwrites = bool(given["overwrite"])
        self._is_partitioned |= name == "partitionBy" or bool(given.get("partitionBy"))
        settings = {str(key).lower(): value for key, value in given.get("options", {}).items()}
        if name == "option":
            settings[str(given.get("key")).lower()] = given.get("value")
        self._folder = given.get("path") or settings.get("path") or self._folder
        self._mode = settings.get("partitionoverwritemode") or self._mode
        return given

    def replaces(
        self, spark: SparkSession, name: str, given: Mapping[str, Any], files: AbstractSet[str]
    ) -> bool:
        """Tell whether what a method writes, whose call was noted, replaces one of some files unread.

        What has no path, such as ``noop`` and JDBC, is no file. Partitions that are overwritten dynamically
        are replaced once all is read.
        """
        if name == "jdbc":
            return False
        target, folder = given.get("tableName", given.get("name")), self._folder
        is_partitioned, replaced = self._is_partitioned, list[str]()
        if target is not None:
            folder = None if name == "insertInto" else folder
            is_partitioned = name == "insertInto" and any(
                column.isPartition for column in spark.catalog.listColumns(target)
            )
            replaced = _files_of(spark, target, drops=name == "saveAsTable")
        if is_partitioned:
            mode = None if name == "insertInto" else self._mode  # it takes no options
            mode = mode or spark.conf.get("spark.sql.sources.partitionOverwriteMode")
            if str(mode).lower() == "dynamic":
                return False
        places = {place for file in files for place in _locate(file)}
        if any(place in places for file in replaced for place in _locate(file)):
            return True
        folders = list(_name(folder)) if isinstance(folder, str) else []
        return any(each.holds(place) for each in folders for place in places)


def _files_of(spark: SparkSession, table: str, *, drops: bool) -> list[str]:
    """Return the files that go when a table is overwritten: of one that is dropped, if they are its own."""
    if drops and "." not in table:
        table = f"`{spark.catalog.currentDatabase()}`.{table}"  # temporary views are not meant
    if drops and (
        not spark.catalog.tableExists(table) or spark.catalog.getTable(table).tableType == "EXTERNAL"
    ):
        return []
    uris = map(unquote, spark.table(table).inputFiles())
    return [re.sub("^file:/+", "/", uri) for uri in uris]


def _name(target: str) -> Iterator[_Place]:
    """Yield the places that a target may be; one without a scheme is where Spark's default file system is."""
    from millrace.parquet.store import SCHEMES  # tasks need no stores

    uri = _URI.fullmatch(target)
    scheme, host, path = uri.groups() if uri else ("", None, target)
    scheme = scheme.lower()
    if scheme in ("", "file", "dbfs"):
        for each in {normpath(Path(path).absolute()), realpath(path)}:
            bare = re.sub("^/+", "/", each)
            yield _Place("file", "", bare if scheme != "dbfs" else f"/dbfs{bare}")
            if not scheme:
                yield _Place("file", "", f"/dbfs{bare}")
                yield _Place(SCHEMES["hdfs"], None, bare)
    else:
        yield _Place(SCHEMES.get(scheme, scheme), host or None, re.sub("^/+", "/", normpath(f"/{path}")))


def _locate(file: str) -> Iterator[_Place]:
    """Yield the places of a file that tasks read, with links followed."""
    uri = _URI.fullmatch(file)
    if uri is not None and not file.startswith("/"):
        yield from _name(file)
    else:
        folder, _, name = file.rpartition("/")
        for each in {normpath(folder), _follow(folder)}:
            yield _Place("file", "", f"{each}/{name}")
