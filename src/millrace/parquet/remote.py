"""Object stores and distributed file systems, as pyarrow reaches them.

A store is a description that pickles; its connections belong to the process, and are opened when the first
file is asked for. Paths stay as the user wrote them, ``s3://bucket/orders/part.parquet``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyarrow import fs

from millrace.errors import InputError, OptionError, first_line
from millrace.options import StorageOptions
from millrace.parquet.listing import State, Tree, state_of

SCHEMES = {
    "s3": "S3", "s3a": "S3", "gs": "Gcs", "gcs": "Gcs", "abfs": "Azure", "abfss": "Azure", "hdfs": "Hadoop",
}  # fmt: skip
"""The schemes of URIs, and pyarrow's file system for each."""

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


@dataclass(frozen=True)
class Remote:
    """An object store or a distributed file system.

    Attributes:
        root: The beginning of all its paths, such as ``s3://bucket``.
        options: Arguments for pyarrow's file system, beside what the environment says.
    """

    root: str
    options: StorageOptions = field(default_factory=StorageOptions, repr=False)

    # Every request takes its time: the pieces of all columns are asked for at once, neighbours as one.
    reading = {"memory_map": False, "pre_buffer": True}  # noqa: RUF012

    @property
    def kind(self) -> str:
        """The name of pyarrow's file system, without what they all end in."""
        return SCHEMES[self.scheme]

    @property
    def scheme(self) -> str:
        return self.root.partition(":")[0]

    @property
    def bucket(self) -> str:
        """What the store calls its part: bucket, container, or none."""
        authority = self.root.partition("://")[2]
        if self.kind == "Hadoop":
            return ""
        return authority.partition("@")[0]

    @property
    def system(self) -> fs.FileSystem:
        """The file system of pyarrow's, opened once a process.

        Raises:
            OptionError: It does not take ``options``.
            NoConnection: This process lacks something that it needs.
        """
        if self not in _SYSTEMS:
            try:
                _SYSTEMS[self] = self._opened()
            except (TypeError, ValueError) as error:
                raise OptionError(
                    f"option storage_options is {self.options!r}: {self._detail(error)}. Expected what "
                    f"pyarrow.fs.{self.kind}FileSystem takes, for {self.root}"
                ) from None
            except (OSError, ImportError) as error:
                raise NoConnection(f"pyarrow cannot open {self.root} ({self._detail(error)})") from None
        return _SYSTEMS[self]

    def state(self, path: str) -> State:
        """Return a file's state.

        Raises:
            StoreError: There is no such file, or the store does not give it.
        """
        info = self.info(path)
        if not info.size:
            info = self.info(path)  # an answer that was cut short has no size
        if info.type != fs.FileType.File:
            raise StoreError(self._missing(path))
        return state_of(info)

    def info(self, path: str) -> fs.FileInfo:
        """Return what there is at a path: a file, a folder or nothing."""
        try:
            return self.system.get_file_info(self._inner(path))
        except (OSError, pa.ArrowException) as error:
            raise StoreError(self._sentence(path, error)) from None

    def source(self, path: str) -> Any:
        """Return an open file."""
        try:
            file = self.system.open_input_file(self._inner(path))
            return file if file.size() else self.system.open_input_file(self._inner(path))
        except (OSError, pa.ArrowException) as error:
            raise StoreError(self._sentence(path, error)) from None

    def tail(self, path: str, size: int) -> bytes:
        """Return a file's last bytes."""
        with self.source(path) as file:
            file.seek(max(0, file.size() - size))
            return bytes(file.read())

    def is_folder(self, path: str) -> bool:
        """Tell whether there is a folder."""
        return bool(self.info(path).type == fs.FileType.Directory)

    def tree(self, folder: str) -> Tree:
        """Return all that is below a folder, from one listing.

        Raises:
            StoreError: There is no such folder, or the store does not list it.
        """
        try:
            infos = self.system.get_file_info(fs.FileSelector(self._inner(folder), recursive=True))
        except (OSError, pa.ArrowException) as error:
            raise StoreError(self._sentence(folder, error)) from None
        return Tree(self, folder, ((self._outer(info.path), info) for info in infos))

    def tree_over(self, paths: Sequence[str]) -> Tree:
        """Return all that is below the folder that has all of some files."""
        folder = os.path.commonpath([os.path.dirname(path.removeprefix(self.root)) for path in paths])  # noqa: PTH120
        return self.tree(self.root + folder)

    def told(self, path: str, error: Exception) -> str | None:
        """Return what an error in reading says of the store, None for an error of the file's content."""
        if isinstance(error, StoreError | OptionError | NoConnection):
            return str(error)
        if isinstance(error, FileNotFoundError) or (
            isinstance(error, OSError) and _OF_STORES.search(str(error))
        ):
            return self._sentence(path, error)
        return None

    def _sentence(self, path: str, error: Exception) -> str:
        detail = self._detail(error)
        if isinstance(error, FileNotFoundError):
            return self._missing(path)
        if "NO_SUCH_BUCKET" in detail:
            return self._without_bucket(path)
        given = "storage_options" if self.options else "the environment, for there are no storage_options"
        if _REFUSALS.search(detail):
            return (
                f"cannot read {path}: the store refuses ({detail}). Expected credentials that may read "
                f"{self.root}, in {given}; what works is the option storage_options, or "
                f"{_FROM_ENVIRONMENT[self.kind]} in the environment of the driver and of the executors"
            )
        return (
            f"cannot read {path}: the store does not answer as expected ({detail}). Requests were repeated "
            f"already; check the network, and the endpoint and region in {given}, or give more time "
            "(storage_options: connect_timeout, request_timeout, retry_strategy)"
        )

    def _opened(self) -> fs.FileSystem:
        authority, given = self.root.partition("://")[2], dict(self.options)
        match self.kind:
            case "S3":
                usual: dict[str, Any] = {
                    "connect_timeout": _CONNECT_SECONDS,
                    "request_timeout": _ANSWER_SECONDS,
                    "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
                }
                return fs.S3FileSystem(**usual | self._found(given) | given)
            case "Gcs":
                usual = {"retry_time_limit": timedelta(seconds=_ANSWER_SECONDS)}
                return fs.GcsFileSystem(**usual | given)
            case "Azure":
                return fs.AzureFileSystem(
                    **{"account_name": authority.partition("@")[2].partition(".")[0]} | given
                )
            case _:
                if not os.environ.get("CLASSPATH"):  # or the JVM that is started here would write of it
                    raise OSError("CLASSPATH names no jars of Hadoop")
                host, _, port = authority.partition(":")
                return fs.HadoopFileSystem(host or "default", int(port or 0), **given)

    def _found(self, given: dict[str, Any]) -> dict[str, str]:
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

    def _missing(self, path: str) -> str:
        if self.bucket and self.system.get_file_info(self.bucket).type == fs.FileType.NotFound:
            return self._without_bucket(path)
        return f"there is no {path}: expected a Parquet file or a folder; {self.root} exists"

    def _without_bucket(self, path: str) -> str:
        return (
            f"cannot read {path}: there is no bucket {self.bucket!r}. Expected one that exists at the "
            "endpoint asked; check its name, and endpoint and region in storage_options or the environment"
        )

    def _detail(self, error: Exception) -> str:
        """Return the first line of an error, without secrets."""
        return self.options.hidden_in(first_line(error).split(" (Request ID")[0].rstrip(". "))


_SYSTEMS: dict[Remote, fs.FileSystem] = {}
