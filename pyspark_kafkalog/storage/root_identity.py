"""The identity of the log directory at a path: its cluster id and directory id, from `meta.properties`.

A path may later name another log directory: a volume is unmounted, a directory is replaced. A longer task (a query, a
write that is planned, staged and committed by different processes, a job that loops) therefore keeps the identity that
it started with, and checks it before it continues.

A directory without `meta.properties`, such as a manual collection of partition directories, has no identity, and
nothing is checked. A copy keeps the ids of the original, and so does an adopted directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.storage.artefacts.meta_properties import read_meta_properties
from pyspark_kafkalog.storage.names import META_PROPERTIES

_ADVICE = (
    "the volume may be unmounted, or the directory moved or replaced; put it back, or begin again with the directory "
    "that is there (a streaming query: with a new checkpoint)"
)


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """The ids of a log directory. At least one is known: brokers before 3.7 give directories no id of their own."""

    cluster_id: str | None
    directory_id: str | None

    def __str__(self) -> str:
        return f"cluster id {self.cluster_id or 'none'}, directory id {self.directory_id or 'none'}"

    def fits(self, found: RootIdentity | None) -> bool:
        """Whether `found` is the same identity. A directory may get an id later, from a broker of version 3.7."""
        if found is None or found.cluster_id != self.cluster_id:
            return False
        return self.directory_id is None or found.directory_id == self.directory_id


def read_identity(root: Path) -> RootIdentity | None:
    """The identity of the log directory at `root`; None if it has none. Raises DiskFormatError, OSError."""
    try:
        properties = read_meta_properties(root / META_PROPERTIES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not properties.cluster_id and not properties.directory_id:
        return None
    return RootIdentity(properties.cluster_id or None, properties.directory_id)


def readable_identity(root: Path) -> RootIdentity | None:
    """As `read_identity`, but None also for a damaged file, which does not prevent reading records."""
    try:
        return read_identity(root)
    except DiskFormatError:
        return None


def check_identity(root: Path, expected: RootIdentity | None) -> None:
    """Raise LogDirError unless `root` is the log directory `expected`. Checks nothing if `expected` is None."""
    if expected is not None:
        found = read_identity(root)
        if not expected.fits(found):
            raise another_root_error(root, expected, found)


def another_root_error(root: Path, expected: RootIdentity, found: RootIdentity | None) -> LogDirError:
    """The error for a path that now names another log directory, or one without an identity."""
    if found is not None:
        what = f"the log directory with {found}"
    elif not root.exists():
        what = "no such directory"
    else:
        what = f"no {META_PROPERTIES}"
    return LogDirError(f"{root}: expected the log directory with {expected}, found {what}; {_ADVICE}")
