"""Where a log directory is: a path of the file system, or a place in an object store named by a URL.

    s3://bucket/prefix           also s3a:// and s3n://, which Hadoop uses for the same
    gs://bucket/prefix
    az://container/prefix        the account comes from the settings
    abfss://container@account.dfs.core.windows.net/prefix     also abfs://, and wasb(s):// with .blob.
    file:///directory, a plain path

Percent signs stand for themselves, as in Spark's paths: a%20b is no space.
A URL holds no credentials: those that do are refused, with a message that does not repeat them. Nothing here
looks at a file or a store; a path is taken as it is. A text such as hdfs://node/log or s3:/bucket is refused: as a path
it would become a directory of that name below the working directory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.store import check_key
from pyspark_kafkalog.values import dataclass

_S3: Final = ("s3", "s3a", "s3n")
_AZURE_WITH_HOST: Final = ("abfs", "abfss", "wasb", "wasbs")
_SCHEMES: Final = (*_S3, "gs", "az", *_AZURE_WITH_HOST)
_KNOWN: Final = "a path, file://, s3://, gs://, az:// or abfss://"

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/{0,2})")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_AZURE_HOST: Final = re.compile(r"([a-z0-9]{3,24})\.(?:dfs|blob)\.core\.windows\.net")


@dataclass(frozen=True, slots=True)
class ObjectLocation:
    """A bucket (Azure: a container), or the folder `prefix` in it ("": all of it).

    scheme is "s3", "gs" or "az". account is Azure's storage account if the URL names it, else "".
    """

    scheme: str
    bucket: str
    prefix: str = ""
    account: str = ""

    @property
    def url(self) -> str:
        """The URL that `parse_location` turns into this location, in one form for all ways to write it."""
        place = f"{self.scheme}://{self.bucket}"
        if self.account:
            place = f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net"
        return f"{place}/{self.prefix}" if self.prefix else place

    @property
    def name(self) -> str:
        """The last part of the prefix, or the bucket."""
        return self.prefix.rpartition("/")[2] or self.bucket

    def __str__(self) -> str:
        return self.url

    def below(self, name: str) -> ObjectLocation:
        """The folder or object `name`, which may have several parts. Raises ValueError for what is no valid key."""
        check_key(name)
        return replace(self, prefix=check_key(f"{self.prefix}/{name}" if self.prefix else name))


#: Where a log directory is.
RootPath: TypeAlias = Path | ObjectLocation


def is_object_url(text: str) -> bool:
    """Whether the text names a place in an object store, not a path; says nothing about the rest of the URL."""
    found = _SCHEME.match(text)
    return found is not None and found[2] == "//" and found[1].lower() in _SCHEMES


def parse_location(text: str) -> RootPath:
    """The place that a path or URL names. Raises InvalidOptionError that says what was expected and found."""
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if found and scheme == "file":
        return parse_file_url(text)
    if not found or not found[2]:
        if not text:
            raise InvalidOptionError(f"expected {_KNOWN}, found an empty text")
        return Path(text)
    if scheme not in _SCHEMES or found[2] == "/":
        raise InvalidOptionError(f"expected {_KNOWN}, found a URL with {found[0]}")
    return _parse_object_url(scheme, text[found.end() :])


def check_path(path: Path) -> Path:
    """`path` itself. Raises InvalidOptionError if it was made of the URL of an object store: a Path drops a slash."""
    found = _SCHEME.match(str(path))
    if found and found[2] and found[1].lower() in _SCHEMES:
        raise InvalidOptionError(f"expected {_KNOWN}, found the Path {str(path)!r}: give a URL as text")
    return path


def parse_file_url(text: str) -> Path:
    """The path of a URL with the scheme `file`. Raises InvalidOptionError for a relative path, and for other hosts."""
    rest = text[len("file:") :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidOptionError(f"expected file:///directory, found {text!r}, which names the host {host!r}")
        rest = slash + path
    if not rest.startswith("/"):
        raise InvalidOptionError(f"expected file:/// and an absolute path, found {text!r}")
    return Path(rest)


def _parse_object_url(scheme: str, rest: str) -> ObjectLocation:
    place, _, path = rest.partition("/")
    if ":" in place or "?" in rest or "#" in rest:  # not repeated: it could be a secret or a signature
        raise InvalidOptionError(
            f"expected {scheme}://{_expected_place(scheme)}/prefix, found a URL with ':', '?' or '#'; "
            "give credentials by options or the environment"
        )
    bucket, account = place, ""
    if scheme in _AZURE_WITH_HOST:
        bucket, account = _parse_azure_place(scheme, place)
    if not _BUCKET.fullmatch(bucket):
        raise InvalidOptionError(f"expected {scheme}://{_expected_place(scheme)}/prefix, found {place!r} in its place")
    return ObjectLocation(_canonical(scheme), bucket, _parse_prefix(scheme, place, path), account)


def _parse_azure_place(scheme: str, place: str) -> tuple[str, str]:
    container, at, host = place.partition("@")
    found = _AZURE_HOST.fullmatch(host)
    if not at or not found:
        raise InvalidOptionError(
            f"expected {scheme}://{_expected_place(scheme)}/prefix, found {place!r} in its place; "
            "for another host write az://container/prefix and set the endpoint"
        )
    return container, found[1]


def _parse_prefix(scheme: str, place: str, path: str) -> str:
    prefix = path.rstrip("/")
    try:
        return check_key(prefix) if prefix else ""
    except ValueError as error:
        raise InvalidOptionError(f"{scheme}://{place}/{path}: {error}") from None


def _expected_place(scheme: str) -> str:
    if scheme in _AZURE_WITH_HOST:
        return f"container@account.{'dfs' if scheme.startswith('abfs') else 'blob'}.core.windows.net"
    return "container" if scheme == "az" else "bucket"


def _canonical(scheme: str) -> str:
    if scheme in _S3:
        return "s3"
    return "gs" if scheme == "gs" else "az"
