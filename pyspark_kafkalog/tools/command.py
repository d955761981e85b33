"""Common parts of the commands: `--path`, errors, notices.

A command is a module of this package that main.py lists. Its docstring is the text of --help; the part after its line
"examples:" is printed after the options. A command has two functions:

    add_arguments(parser)       adds its options to an argparse parser, with add_path and add_output of output.py
    run(options) -> int         runs the command, prints through an Output, returns the exit code

A module with several commands has a table COMMANDS instead, with a `Command` by name.

main.py prints every KafkalogError and OSError that run raises in one line on sys.stderr and exits with 1, so commands
catch only errors that they can handle. Contradictory options raise a UsageError. Heavy modules (log_dir and all that it
imports) are imported inside functions, so that --help and mistakes in options are answered at once.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
    from pyspark_kafkalog.storage.log.reader import TimestampAndOffset


class UsageError(KafkalogError):
    """Options that contradict each other, or an invalid value of an option."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the text of --help, its two functions, and the exit code for wrong options."""

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    usage_exit_code: int = 1


def add_path(parser: argparse.ArgumentParser, help_text: str = "the log directory (no default)") -> None:
    """`--path ROOT`, the counterpart of --bootstrap-server of Kafka's tools."""
    parser.add_argument("--path", required=True, metavar="ROOT", type=Path, help=help_text)


def add_read_to_log_end(parser: argparse.ArgumentParser) -> None:
    """`--read-to-log-end`, which `open_log_dir` reads."""
    parser.add_argument(
        "--read-to-log-end",
        action="store_true",
        help="of a broker's directory: read to the log end, not to the high watermark of its last checkpoint",
    )


def add_local_only(parser: argparse.ArgumentParser, help_text: str) -> None:
    """`--local-only`: continue without the offsets that a broker has moved to remote storage."""
    parser.add_argument("--local-only", action="store_true", help=help_text)


def open_log_dir(options: argparse.Namespace) -> LogDir:
    """The log directory at `--path`, native or a broker's."""
    from pyspark_kafkalog.log_dir import LogDir

    return LogDir.open(options.path, read_to_log_end=getattr(options, "read_to_log_end", False))


def warn_of_unread_offsets(
    command: str, log_dir: LogDir, partitions: Iterable[PartitionSnapshot] | None = None
) -> None:
    """Print to sys.stderr how many offsets are above the high watermarks of all opened, or the given, partitions.

    Only for a broker's directory.
    """
    from pyspark_kafkalog.root.broker_notices import above_high_watermark

    notice = above_high_watermark(log_dir.path, log_dir.root.partitions_read() if partitions is None else partitions)
    if notice is not None:
        sys.stderr.write(f"kafkalog {command}: {notice}\n")


def warn_of_remote_offsets(command: str, partitions: Iterable[PartitionSnapshot]) -> None:
    """Print to sys.stderr which offsets of the partitions are in remote storage."""
    from pyspark_kafkalog.root.broker_notices import in_remote_storage

    notice = in_remote_storage(partitions)
    if notice is not None:
        sys.stderr.write(f"kafkalog {command}: {notice}\n")


def first_since(
    log_dir: LogDir, partition: PartitionSnapshot, time_ms: int, *, local_only: bool
) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one; None if there is none.

    Raises OffsetOutOfRangeError if offsets are in remote storage, where that record may be, unless `local_only`.
    """
    from pyspark_kafkalog.root.broker_notices import remote_offsets

    if partition.remote_offsets_count and not local_only:
        raise OffsetOutOfRangeError(
            f"the offset at a time may be in remote storage: {remote_offsets(partition)}; --local-only searches the "
            "offsets in this directory"
        )
    reader = log_dir.reader(partition.topic, partition.partition)
    return reader.offset_for_timestamp(time_ms, partition.local_log_start_offset, partition.high_watermark)


def describe_topic(command: str, log_dir: LogDir, name: str) -> TopicDescription:
    """The topic, without partitions that are symbolic links; these are named on sys.stderr."""
    from pyspark_kafkalog.storage.artefacts.partition_listing import link_message

    described = log_dir.topic(name, without_links=True)
    for number in described.links:
        sys.stderr.write(f"kafkalog {command}: {link_message(log_dir.path / f'{name}-{number}')}\n")
    return described


def positive(text: str) -> int:
    """The argparse type of integers of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


def node_id_of(root: Path) -> int | None:
    """The node id of a log directory; None if meta.properties, or the node id in it, is missing."""
    from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties
    from pyspark_kafkalog.storage.names import META_PROPERTIES

    try:
        return read_meta_properties(root / META_PROPERTIES).node_id
    except (DiskFormatError, OSError):
        return None  # partition folders copied out of a broker's directory have none


def one_line(error: BaseException) -> str:
    """The error's text without line breaks; for errors of the system, the file and the reason without the number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        files = [str(each) for each in (error.filename, error.filename2) if each is not None]
        if files:
            text = f"{' -> '.join(files)}: {error.strerror}"
        elif type(error) is not OSError:
            text = error.strerror
    return " ".join(text.split())


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does, so that unfinished work is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def utc_time(timestamp_ms: int) -> str:
    """The time in UTC, in milliseconds; the number itself if it is outside the calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
