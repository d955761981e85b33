"""The option `path`: a log directory, or one partition directory in it.

Tasks run in other working directories than the driver, so a path is made absolute before it is sent to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, parse_partition_dir

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """An absolute root, and the partition if the path named one of its partition directories."""

    root: Path
    partition: TopicPartition | None = None


def absolute_path(text: str) -> Path:
    """`text`, a path or a `file:` URI, as an absolute path; percent signs are literal, as in Spark's paths.

    Raises InvalidOptionError for other schemes and for other hosts.
    """
    path = text
    scheme = _SCHEME.fullmatch(text)
    if scheme is not None:
        path = scheme[2]
        if path.startswith("//"):
            host, _, rest = path[2:].partition("/")
            path = "/" + rest
            if host not in ("", "localhost"):
                scheme = None
        if scheme is None or scheme[1].lower() != "file" or not path.startswith("/"):
            raise InvalidOptionError(
                f"option path has the bad value {text!r}: expected a path on a file system that the driver and all "
                "executors see, or a file: URI with such a path"
            )
    if "\0" in path:
        raise InvalidOptionError(f"option path has the bad value {text!r}: it holds a zero byte")
    return Path(path).absolute()


def locate(text: str) -> Location:
    """The root of `text`, and the partition if it is a partition directory: named like one, with a segment in it."""
    path = absolute_path(text)
    partition = parse_partition_dir(path.name)
    if partition is not None and any(path.glob(f"*{LOG_SUFFIX}")):
        return Location(path.parent, partition)
    return Location(path)
