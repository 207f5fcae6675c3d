"""Where files are: on this machine's disks, or in a store that pyarrow reaches over the network.

A store is a description that pickles. Its file system belongs to the process, and is opened when the first
file is asked for. Paths stay as the user wrote them, ``s3://bucket/orders/part.parquet``.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from millrace.errors import InputError, OptionError, first_line
from millrace.options import StorageOptions
from millrace.parquet.partitions import is_hidden

SCHEMES = {
    "s3": "S3", "s3a": "S3", "gs": "Gcs", "gcs": "Gcs", "abfs": "Azure", "abfss": "Azure", "hdfs": "Hadoop",
}  # fmt: skip
"""The schemes of URIs, and pyarrow's file system for each."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_URI = re.compile(r"(([a-z0-9]+)://([^/]*))(?:/.*)?", re.DOTALL)
_DBFS = "/dbfs"
_PART = ".part"
"""What the name of a file ends in while it is written; it begins with a dot."""
_CLOSED = {"S3", "Gcs"}
"""Stores that show a file once it is closed; others show it while it is written."""
_SPOOLED = 1 << 20
"""What is written to a store waits in memory up to so many bytes, and else in a temporary file."""
# A request that is not answered in that time (seconds) is sent again, so often in all.
_CONNECT_SECONDS, _ANSWER_SECONDS, _ATTEMPTS = 10, 60, 6
_REFUSALS = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|UNRECOGNIZED_CLIENT|EXPIRED|"
    r"\b40[13]\b|[Cc]redential|[Ff]orbidden|[Uu]nauth"
)
_OF_STORES = re.compile(r"AWS Error|google::cloud|Azure|HDFS|HTTP|curlCode|[Tt]imed? ?out")
_FROM_ENVIRONMENT = {
    "S3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "Gcs": "GOOGLE_APPLICATION_CREDENTIALS",
    "Azure": "AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET",
    "Hadoop": "HADOOP_CONF_DIR and CLASSPATH",
}


class StoreError(InputError):
    """A store has no such file, refuses to give it, or does not answer; the message says all."""


class NoConnection(ValueError):
    """This process has not what it needs to reach the store; Spark may have it."""


class State(NamedTuple):
    """What tells whether a file has changed: its time in nanoseconds, and its size in bytes."""

    mtime_ns: int
    size: int


@dataclass(frozen=True)
class Store:
    """The disks of this machine, an object store or a distributed file system.

    All methods raise ``StoreError`` for what is not there or not given. Those that open the file system also
    raise ``OptionError``, where it does not take ``options``, and ``NoConnection``.

    Attributes:
        root: The beginning of all its paths, such as ``s3://bucket``; nothing for disks.
        options: Arguments for pyarrow's file system, beside what the environment says.
    """

    root: str = ""
    options: StorageOptions = field(default_factory=StorageOptions, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether each request takes its time."""
        return bool(self.root)

    @property
    def kind(self) -> str:
        """The name of pyarrow's file system, without what they all end in."""
        return SCHEMES[self.root.partition(":")[0]] if self.is_remote else "Local"

    @property
    def bucket(self) -> str:
        """What the store calls its part: bucket, container, or none."""
        return "" if self.kind == "Hadoop" else self.root.partition("://")[2].partition("@")[0]

    @property
    def system(self) -> fs.FileSystem:
        """The file system of pyarrow's, opened once a process."""
        if self not in _SYSTEMS:
            try:
                _SYSTEMS[self] = self._open()
            except (TypeError, ValueError) as error:
                raise OptionError(
                    f"option storage_options is {self.options!r}: {self._detail(error)}. Expected what "
                    f"pyarrow.fs.{self.kind}FileSystem takes, for {self.root}"
                ) from None
            except (OSError, ImportError) as error:
                raise NoConnection(f"pyarrow cannot open {self.root} ({self._detail(error)})") from None
        return _SYSTEMS[self]

    def info(self, path: str) -> fs.FileInfo:
        """Return what there is at a path: a file, a folder or nothing."""
        with self.naming(path):
            return self.system.get_file_info(self._inner(path))

    def is_folder(self, path: str) -> bool:
        return bool(self.info(path).type == fs.FileType.Directory)

    def state(self, path: str) -> State:
        """Return a file's state."""
        info = self.info(path)
        if self.is_remote and not info.size:
            info = self.info(path)  # an answer that was cut short has no size
        if info.type == fs.FileType.File:
            return _state_of(info)
        gone = f"cannot read {path}: {os.strerror(errno.ENOENT)}"
        raise StoreError(self.missing(path) if self.is_remote else gone)

    def source(self, path: str) -> Any:
        """Return an open file."""
        with self.naming(path):
            file = self.system.open_input_file(self._inner(path))
            if self.is_remote and not file.size():
                file = self.system.open_input_file(self._inner(path))  # as for the state
            return file

    @contextmanager
    def writing(self, path: str, *, anew: bool = False) -> Iterator[IO[bytes]]:
        """Give a file to write, which is at ``path`` when it is left, whole, and else nowhere.

        It replaces what was there; with ``anew`` that stays, on disks that have links. Errors of what is
        done with the file are not named: they may be of anything.
        """
        folder, slash, name = path.rpartition("/")
        # A name of its own: a task that Spark has given up may still be writing.
        part = f"{folder}{slash}.{name}.{uuid.uuid4().hex}{_PART}"
        if self.is_remote:
            with tempfile.SpooledTemporaryFile(_SPOOLED) as file:
                yield file
                file.seek(0)
                with self.naming(path, "write"):
                    self._upload(file, path, path if self.kind in _CLOSED else part)
            return
        with self.naming(path, "write"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            disk = Path(part).open("wb")  # noqa: SIM115  # closed below
        try:
            with disk:
                yield disk
            with self.naming(path, "write"):
                if not (anew and _link(part, path)):
                    Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)

    def _upload(self, file: IO[bytes], path: str, first: str) -> None:
        """Write a file to a store, under its first name until it is whole."""
        with self.system.open_output_stream(self._inner(first)) as whole:
            shutil.copyfileobj(file, whole)
        if first == path:
            return
        try:
            self.system.move(self._inner(first), self._inner(path))
        except NotImplementedError:
            self.system.delete_file(self._inner(first))
            raise StoreError(
                f"cannot write {path}: {self.root} cannot rename files, so others might read half of one; "
                "expected a storage account with a hierarchical namespace, or another store"
            ) from None

    def clean(self, folder: str) -> None:
        """Remove what processes that died while they wrote have left in a folder, if there is one."""
        if self.kind in _CLOSED:
            return
        with self.naming(folder, "write"):
            for info in self.system.get_file_info(fs.FileSelector(self._inner(folder), allow_not_found=True)):
                if info.base_name.startswith(".") and info.base_name.endswith(_PART):
                    with suppress(FileNotFoundError):
                        self.system.delete_file(info.path)

    def identity(self, path: str) -> str:
        """Return one name for all that a path may be written as."""
        if not self.is_remote:
            return os.path.realpath(path)
        return f"{self.kind}:{posixpath.normpath(path.partition('://')[2])}"

    def make_folder(self, path: str) -> None:
        """Make a folder, if there is none."""
        with self.naming(path, "write"):
            self.system.create_dir(self._inner(path), recursive=True)

    def below(self, folder: str) -> Iterator[tuple[str, State | None]]:
        """Yield all that is below a folder, and itself: files with their states, folders with None.

        A folder comes before what is in it. A store is asked once; a disk folder by folder, for what is not
        hidden.
        """
        top = folder.rstrip("/")
        with self.naming(folder):
            infos = self.system.get_file_info(fs.FileSelector(self._inner(top), recursive=self.is_remote))
            found = [(self._outer(info.path), info) for info in infos]  # a path may be no text
        yield top, None
        folders = {top}
        for path, info in found:
            is_file = info.type == fs.FileType.File
            new: list[str] = []
            above = path.rpartition("/")[0] if is_file else path
            while above.startswith(f"{top}/") and above not in folders:  # not all stores list folders
                new.append(above)
                folders.add(above)
                above = above.rpartition("/")[0]
            yield from ((each, None) for each in reversed(new))
            if is_file:
                yield path, _state_of(info)
        if not self.is_remote:
            for path in sorted(folders - {top}):
                if not is_hidden(path.rpartition("/")[2]):
                    yield from self.below(path)

    def around(self, paths: Sequence[str]) -> dict[str, State | None]:
        """Return all that is below the folder that has all of some files, as :meth:`below` does."""
        folders = {path.removeprefix(self.root).rpartition("/")[0] or "/" for path in paths}
        return dict(self.below(self.root + os.path.commonpath(folders)))

    def explain(self, path: str, error: Exception) -> str | None:
        """Return what an error in reading says of a remote store, None for an error of the file's content."""
        if not self.is_remote:
            return None
        if isinstance(error, StoreError | OptionError | NoConnection):
            return str(error)
        if isinstance(error, FileNotFoundError):
            return self.missing(path)
        is_stores = isinstance(error, OSError) and _OF_STORES.search(str(error))
        return self._sentence(path, error) if is_stores else None

    def missing(self, path: str) -> str:
        """Return what to say where nothing is at a path."""
        if not self.is_remote:
            there = next(parent for parent in Path(path).parents if parent.exists())
            return f"there is no {path}: expected a Parquet file, a folder or a glob; {there} exists"
        with self.naming(path):
            if self.bucket and self.system.get_file_info(self.bucket).type == fs.FileType.NotFound:
                return self._without_bucket(path)
        return f"there is no {path}: expected a Parquet file or a folder; {self.root} exists"

    @contextmanager
    def naming(self, path: str, verb: str = "read") -> Iterator[None]:
        """Raise errors of a file as a StoreError that names it; ``verb`` is what could not be done."""
        try:
            yield
        except (OSError, pa.ArrowException, UnicodeError) as error:
            raise StoreError(self._sentence(path, error, verb)) from None

    def _sentence(self, path: str, error: Exception, verb: str = "read") -> str:
        detail = self._detail(error)
        if not self.is_remote:
            number = getattr(error, "errno", None)
            return f"cannot {verb} {path}: {os.strerror(number) if number else detail}"
        if isinstance(error, FileNotFoundError):
            return self.missing(path)
        if "NO_SUCH_BUCKET" in detail or f"Bucket '{self.bucket}' not found" in detail:
            return self._without_bucket(path, verb)
        given = "storage_options" if self.options else "the environment, for there are no storage_options"
        if _REFUSALS.search(detail):
            return (
                f"cannot {verb} {path}: the store refuses ({detail}). Expected credentials that may {verb} "
                f"{self.root}, in {given}; what works is the option storage_options, or "
                f"{_FROM_ENVIRONMENT[self.kind]} in the environment of the driver and of the executors"
            )
        return (
            f"cannot {verb} {path}: the store does not answer as expected ({detail}). Requests were repeated "
            f"already; check the network, and the endpoint and region in {given}, or give more time "
            "(storage_options: connect_timeout, request_timeout, retry_strategy)"
        )

    def _without_bucket(self, path: str, verb: str = "read") -> str:
        return (
            f"cannot {verb} {path}: there is no bucket {self.bucket!r}. Expected one that exists at the "
            "endpoint asked; check its name, and endpoint and region in storage_options or the environment"
        )

    def _detail(self, error: Exception) -> str:
        """Return the first line of an error, without secrets."""
        return self.options.hidden_in(first_line(error).split(" (Request ID")[0].rstrip(". "))

    def _open(self) -> fs.FileSystem:
        authority, given = self.root.partition("://")[2], dict(self.options)
        match self.kind:
            case "Local":
                return fs.LocalFileSystem()  # not mapped: mapped pages count as memory of the task
            case "S3":
                usual: dict[str, Any] = {
                    "connect_timeout": _CONNECT_SECONDS,
                    "request_timeout": _ANSWER_SECONDS,
                    "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
                }
                return fs.S3FileSystem(**usual | self._find_endpoint(given) | given)
            case "Gcs":
                usual = {"retry_time_limit": timedelta(seconds=_ANSWER_SECONDS)}
                return fs.GcsFileSystem(**usual | given)
            case "Azure":
                usual = {"account_name": authority.partition("@")[2].partition(".")[0]}
                return fs.AzureFileSystem(**usual | given)
            case _:
                if not os.environ.get("CLASSPATH"):  # or the JVM that is started here would write of it
                    raise OSError("CLASSPATH names no jars of Hadoop")
                host, _, port = authority.partition(":")
                return fs.HadoopFileSystem(host or "default", int(port or 0), **given)

    def _find_endpoint(self, given: dict[str, Any]) -> dict[str, str]:
        """Return S3's endpoint and region where options do not say them.

        The endpoint comes from the environment, where pyarrow's constructor does not look. Without one, the
        bucket is asked for its region, for the endpoint of another refuses it.
        """
        if "endpoint_override" in given:
            return {}
        url = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if url:
            scheme, there, address = url.rpartition("://")
            return {"endpoint_override": address} | ({"scheme": scheme} if there else {})
        if "region" in given or {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
            return {}
        try:
            return {"region": fs.resolve_s3_region(self.bucket)}
        except (OSError, pa.ArrowException):
            return {}  # the first request tells what is wrong

    def _inner(self, path: str) -> str:
        """Return a path as pyarrow wants it."""
        return (self.bucket + path.removeprefix(self.root)).rstrip("/") or "/"

    def _outer(self, path: str) -> str:
        return self.root + path.removeprefix(self.root).removeprefix(self.bucket)


_SYSTEMS: dict[Store, fs.FileSystem] = {}
DISKS = Store()


def _link(part: str, path: str) -> bool:
    """Name a file, unless the name is taken; returns whether the disk can tell."""
    try:
        os.link(part, path)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def _state_of(info: fs.FileInfo) -> State:
    return State(-1 if info.mtime_ns is None else info.mtime_ns, info.size)


def locate(text: str, options: StorageOptions | None = None) -> tuple[Store | None, str]:
    """Return the store that a path or URI is in, and the path as that store knows it.

    Nothing in it is unescaped. The store is None where only Spark knows what the path's scheme means.

    Raises:
        InputError: The URI has no bucket or host, or has a password in it.
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        return DISKS, text
    name = scheme[1].lower()
    if name == "file":
        return DISKS, "/" + text[len("file:") :].lstrip("/")
    if name == "dbfs" and Path(_DBFS).is_dir():
        return DISKS, f"{_DBFS}/{text[len('dbfs:') :].lstrip('/')}"
    if name not in SCHEMES or (name == "hdfs" and not text[5:].startswith("//")):
        return None, text  # an hdfs path without a host is where Spark's own settings say
    text = name + text[len(name) :]
    uri = _URI.fullmatch(text)
    if uri is None or not (uri[3] or name == "hdfs"):
        raise InputError(
            f"{text!r} names no bucket: expected {name}://bucket/path, as a text, for a pathlib.Path drops a "
            "slash"
        )
    kind, user = SCHEMES[name], uri[3].rpartition("@")[0]
    if (user and kind != "Azure") or (":" in (user or uri[3]) and kind != "Hadoop"):
        raise InputError(
            f"a path that begins with {name}:// has credentials or a port in it: expected "
            f"{name}://bucket/path; give access keys and endpoints in the option storage_options or in the "
            "environment"
        )
    return Store(uri[1], options or StorageOptions()), text.rstrip("/")
