"""What several commands do while they run: open the log directory of --path, print notices about it, log, end.

The log on standard error is lines of text, or one JSON object a line. A message holds names that clients have chosen.
So it is one line, and the lines of a traceback are indented.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import LogDirError, OffsetOutOfRangeError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.jobs.tasks import ending_signals
from pyspark_kafkalog.metadata.invariants import following_text
from pyspark_kafkalog.metadata.root_format import is_metadata_copy
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import (
    PartitionSnapshot,
    TopicDescription,
    in_remote_storage,
    reading_notices,
    remote_offsets,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_properties_file
from pyspark_kafkalog.storage.filesystem import warn_if_others_read
from pyspark_kafkalog.tools.command import Failures, UsageError
from pyspark_kafkalog.units import printable

if TYPE_CHECKING:
    from pyspark_kafkalog.root.brokers.image import BrokerMetadata
    from pyspark_kafkalog.storage.log.reader import TimestampAndOffset


def open_log_dir(options: argparse.Namespace) -> LogDir:
    """The log directory at `--path`, native or a broker's."""

    remote_storage = getattr(options, "remote_storage", None)
    if options.path is None and remote_storage is None:
        raise UsageError("the following arguments are required: --path, or --remote-storage")
    return LogDir.open(
        options.path,
        read_to_log_end=getattr(options, "read_to_log_end", False),
        remote_storage=remote_storage,
        remote_storage_layout=getattr(options, "remote_storage_layout", None),
        remote_storage_key_files=getattr(options, "remote_storage_key_files", None),
    )


def warn_of_unread_offsets(
    command: str, log_dir: LogDir, partitions: Iterable[PartitionSnapshot] | None = None
) -> None:
    """Print to sys.stderr how many offsets are above the high watermarks of all opened, or the given, partitions.

    Only for brokers' directories; of several also where the replicas of these partitions differ.
    """
    for notice in reading_notices(log_dir.root.partitions_read() if partitions is None else partitions):
        sys.stderr.write(f"kafkalog {command}: {notice}\n")


def warn_of_remote_offsets(command: str, partitions: Iterable[PartitionSnapshot]) -> None:
    """Print to sys.stderr which offsets of the partitions are in remote storage."""
    notice = in_remote_storage(partitions)
    if notice is not None:
        sys.stderr.write(f"kafkalog {command}: {notice}\n")


def first_since(
    log_dir: LogDir, partition: PartitionSnapshot, time_ms: int, *, local_only: bool
) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one; None if there is none.

    Raises OffsetOutOfRangeError if offsets are in remote storage, where that record may be, unless `local_only`.
    """
    if partition.remote_offsets_count and not local_only:
        raise OffsetOutOfRangeError(
            f"the offset at a time may be in remote storage: {remote_offsets(partition)}; --local-only searches the "
            "offsets in this directory"
        )
    reader = log_dir.reader(partition.topic, partition.partition)
    return reader.offset_for_timestamp(time_ms, partition.readable_start_offset, partition.high_watermark)


def metadata_of_copy(log_dir: LogDir) -> BrokerMetadata | None:
    """What a copy of a metadata log adds up to; None for any other directory. Raises LogDirError for a damaged one."""
    if not any(map(is_metadata_copy, log_dir.root.directories[:1])):
        return None
    metadata = broker_metadata(log_dir)
    if metadata.damage is not None:
        raise LogDirError(f"the copy of the metadata log is damaged: {metadata.damage}")
    return metadata


def broker_metadata(log_dir: LogDir) -> BrokerMetadata:
    """What the metadata log in the first of the directories adds up to; nothing without one. Raises OSError."""
    from pyspark_kafkalog.root.brokers.image import read_metadata_of  # not needed with a native root

    return read_metadata_of(log_dir.root.directories)


def describe_topic(failures: Failures, log_dir: LogDir, name: str) -> TopicDescription:
    """The topic, without partitions that cannot be read; these are among the failures."""
    described = log_dir.topic(name, readable_only=True)
    for number, error in described.unreadable.items():
        failures.add(error, f"{name}-{number}")
    return described


def say_what_it_follows(root: Root) -> None:
    """Say on standard error which leader the log directory follows, if it follows one."""
    if root.follows is not None:
        sys.stderr.write(printable(f"{root.path} {following_text(root.native().store.image)}") + "\n")


#: Names of clients' properties that hold a secret.
_SECRET = re.compile(r"password|jaas|ssl\.keystore\.key")


def parse_properties_options(texts: Iterable[str], file: Path | None = None) -> dict[str, str]:
    """Each text's NAME=VALUE, which overrides the properties file if one is given. Raises UsageError."""
    properties = {} if file is None else read_properties_file(file)
    if file is not None and any(_SECRET.search(name) for name in properties):
        warn_if_others_read(file, "which has passwords or keys")
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"Invalid command line properties: {text}: expected NAME=VALUE")
        properties[name] = value
    return properties


def is_true(properties: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Whether the property is `true`, in upper or lower case; anything else is false, as in Kafka's console tools."""
    return properties[name].strip().lower() == "true" if name in properties else default


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the block as Ctrl-C does, so that unfinished work is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    before = {number: signal.signal(number, signal.default_int_handler) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The log of a command on standard error

_INDENT: Final = "    "


def add_log_format(parser: argparse.ArgumentParser) -> None:
    """`--log-format`, for `set_up_log`."""
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log (default: text)")


class _TextFormatter(logging.Formatter):
    """One line for each message; the lines of a traceback, which may end with a name, begin with spaces."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join(_INDENT + printable(each) for each in lines)


class _JsonFormatter(logging.Formatter):
    """One object a line: time in ISO 8601, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields = {"time": moment, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_log(form: str) -> None:
    """Log to sys.stderr from the level INFO on, as "text" or "json"."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else text_formatter("%(name)s: "))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def text_formatter(place: str = "") -> logging.Formatter:
    """Time, level and message; `place` is a format of what comes before the message."""
    return _TextFormatter(f"%(asctime)s %(levelname)s {place}%(message)s")
