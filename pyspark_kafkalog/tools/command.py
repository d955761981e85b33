"""Common parts of the commands: `--path`, errors, notices, and values of options.

A command is a module of this package that main.py lists. Its docstring is the text of --help; the part after its line
"examples:" is printed after the options. A command has two functions:

    add_arguments(parser)       adds its options to an argparse parser, with add_path and add_output of output.py
    run(options) -> int         runs the command, prints through an Output, returns the exit code

A module with several commands has a table COMMANDS instead, with a `Command` by name.

main.py prints every KafkalogError and OSError that run raises in one line on sys.stderr and exits with 1, so commands
catch only errors that they can handle. Contradictory options raise a UsageError. Heavy modules (log_dir and all that it
imports) are imported inside functions, so that --help and mistakes in options are answered at once.

Values on the command line: points in time, settings, and the topics and partitions that an option selects.

    --time, --from-time     milliseconds since 1970, or ISO 8601
    --property              NAME=VALUE, also from a Java properties file
    --topic                 a Java regular expression for the whole name; a comma means "or"
    --include               the same, but a comma is literal, as in console-consumer
    --topic-partitions      topic:partition,topic:from-to,:-to,... with a regular expression for each topic

Source of the rules: org.apache.kafka.server.util.TopicFilter.IncludeList, org.apache.kafka.tools.GetOffsetShell and
org.apache.kafka.tools.consumer.ConsoleConsumer.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark_kafkalog.errors import (
    DiskFormatError,
    InvalidOptionError,
    KafkalogError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from pyspark_kafkalog.tools.dump.java_text import parse_long
from pyspark_kafkalog.units import EPOCH, INT32_MAX, printable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from pyspark_kafkalog.java_regex.topic_pattern import TopicPattern
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.root.snapshot import PartitionSnapshot, TopicDescription
    from pyspark_kafkalog.server.config import Address
    from pyspark_kafkalog.storage.log.reader import TimestampAndOffset
    from pyspark_kafkalog.storage.names import TopicPartition


#: The help text of options that accept both.
FORMS: Final = "ms since 1970, or ISO 8601, in UTC unless it names an offset: 2026-01-31T10:15:00"

_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?)?(Z|z|[+-]\d\d(?::?\d\d)?)?")

#: java.time.ZoneOffset
_ZONE_HOURS_MAX: Final = 18


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """For the imports of a large command: they make no garbage worth a tenth of their time to look for it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse_time_ms(text: str) -> int | None:
    """The time in ms since 1970; None if `text` is neither a number nor ISO 8601. Digits below ms are truncated."""
    number = parse_long(text)
    if number is not None:
        return number
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return None
    date, time_of_day, fraction, zone = match.groups()
    try:
        seconds = epoch_seconds(f"{date}T{time_of_day or '00:00'}", zone or "Z", zone_hours_max=_ZONE_HOURS_MAX)
    except (ValueError, OverflowError):
        return None
    return seconds * 1000 + int((fraction or "").ljust(3, "0")[:3])


def epoch_seconds(local: str, zone: str, *, zone_hours_max: int) -> int:
    """Seconds since 1970 of an ISO 8601 time to the second in the zone `Z`, `+02`, `+0200` or `+02:00`.

    Raises ValueError for a time or zone that does not exist, OverflowError for one outside of the calendar.
    """
    moment = datetime.fromisoformat(local).replace(tzinfo=timezone.utc)
    if zone not in ("Z", "z"):
        digits = zone[1:].replace(":", "")
        hours, minutes = int(digits[:2]), int(digits[2:] or "0")
        if hours > zone_hours_max or minutes > 59:
            raise ValueError(zone)
        offset = timedelta(hours=hours, minutes=minutes)
        moment = moment + offset if zone[0] == "-" else moment - offset
    return (moment - EPOCH) // timedelta(seconds=1)


def time_ms(text: str) -> int:
    """The argparse type of points in time from 1970 on."""
    found = parse_time_ms(text)
    if found is None or found < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a time: expected {FORMS}")
    return found


#: Names of clients' properties that hold a secret.
_SECRET = re.compile(r"password|jaas|ssl\.keystore\.key")


def parse_properties_options(texts: Iterable[str], file: Path | None = None) -> dict[str, str]:
    """Each text's NAME=VALUE, which overrides the properties file if one is given. Raises UsageError."""
    from pyspark_kafkalog.storage.artefacts.marker_files import read_properties_file
    from pyspark_kafkalog.storage.filesystem import warn_if_others_read

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


PartitionFilter: TypeAlias = "Callable[[TopicPartition], bool]"

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_ANY_TOPIC: Final = ".*"
_PARTITION_DIGITS_MAX: Final = 10


def topic_pattern(text: str) -> TopicPattern:
    """The pattern that a topic's whole name must match: enclosing quotes and blanks are dropped, a comma means "or"."""
    return include_pattern(text.strip().replace(",", "|").replace(" ", "").strip("\"'"))


def include_pattern(text: str) -> TopicPattern:
    """The pattern that a topic's whole name must match, unchanged."""
    from pyspark_kafkalog.java_regex.topic_pattern import compile_topic_pattern

    try:
        return compile_topic_pattern(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def topics_and_partitions(topic: str | None, partitions: str | None) -> PartitionFilter:
    """`--topic` (None: all) and `--partitions`, numbers separated by commas (None or empty: all)."""
    pattern = topic_pattern(_ANY_TOPIC if topic is None else topic)
    numbers = [text for text in (partitions or "").split(",") if text]
    if not all(each.isdecimal() for each in numbers):
        raise UsageError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {partitions}"
        )
    selected = {int(each) for each in numbers}
    return lambda each: pattern.matches(each.topic) and (not selected or each.partition in selected)


def topic_partition_rules(text: str) -> PartitionFilter:
    """`--topic-partitions`: a partition is selected if one of the rules selects it."""
    rules = [_rule(each) for each in text.split(",")]
    return lambda each: any(rule(each) for rule in rules)


def _rule(text: str) -> PartitionFilter:
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(f"Invalid rule specification: {text}")
    pattern = topic_pattern(match[1] or _ANY_TOPIC)
    if match[2]:
        first, end = int(match[2]), int(match[2]) + 1
    else:
        first, end = int(match[3] or 0), int(match[4] or INT32_MAX)
    return lambda each: pattern.matches(each.topic) and first <= each.partition < end


def topic_partitions(log_dir: LogDir, topics: Sequence[str]) -> tuple[list[TopicPartition], list[str]]:
    """The partitions that values of --topic name (`topic` or `topic:0,1`), and the topics that do not exist."""
    from pyspark_kafkalog.storage.names import TopicPartition

    found: list[TopicPartition] = []
    unknown: list[str] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if colon:
            found += [TopicPartition(topic, _partition_number(number, text)) for number in numbers.split(",")]
            continue
        try:
            found += [TopicPartition(topic, each) for each in log_dir.root.partition_numbers(topic)]
        except UnknownTopicError:
            unknown.append(topic)
    return list(dict.fromkeys(found)), unknown


def _partition_number(text: str, argument: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _PARTITION_DIGITS_MAX:
        raise UsageError(f"Invalid partition '{text}' specified in topic arg '{argument}'")
    return int(text)


class UsageError(KafkalogError):
    """Options that contradict each other, or an invalid value of an option."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the text of --help, its two functions, and the exit code for wrong options."""

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    usage_exit_code: int = 1


def add_path(
    parser: argparse.ArgumentParser,
    help_text: str = "the log directory, or to read several directories of brokers, with commas between (no default)",
    *,
    required: bool = True,
) -> None:
    """`--path ROOT`, the counterpart of --bootstrap-server of Kafka's tools."""
    parser.add_argument("--path", required=required, metavar="ROOT", type=path_or_url, help=help_text)


def path_or_url(text: str) -> Path | str:
    """`text` as a path, unless it is the URL of a place in an object store."""
    from pyspark_kafkalog.object_store.location import is_object_url

    return text if is_object_url(text) else local_path(text)


def local_path(text: str) -> Path:
    """`text`, a path or a `file:` URL, as a path; argparse reports a URL of anything else."""
    from pyspark_kafkalog.object_store.location import parse_location

    try:
        place = parse_location(text)
    except InvalidOptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not isinstance(place, Path):
        raise argparse.ArgumentTypeError(f"expected a path on a file system, found {place}")
    return place


def add_path_or_remote_storage(parser: argparse.ArgumentParser) -> None:
    """`--path ROOT` and the options of `add_remote_storage`; `open_log_dir` requires one of them."""
    add_path(parser, "the log directory (default: --remote-storage alone)", required=False)
    add_remote_storage(parser)


def add_read_to_log_end(parser: argparse.ArgumentParser) -> None:
    """`--read-to-log-end`, which `open_log_dir` reads."""
    parser.add_argument(
        "--read-to-log-end",
        action="store_true",
        help="of a broker's directory: read to the log end, not to the high watermark of its last checkpoint",
    )


def add_remote_storage(parser: argparse.ArgumentParser) -> None:
    """`--remote-storage` and `--remote-storage-layout`, which `open_log_dir` reads."""
    parser.add_argument(
        "--remote-storage",
        metavar="URL",
        help="the remote storage of a broker with tiered storage: a path, or a URL of bucket and prefix",
    )
    parser.add_argument(
        "--remote-storage-layout",
        choices=("local", "aiven"),
        help="how --remote-storage is laid out (default: found by looking at its objects)",
    )
    parser.add_argument(
        "--remote-storage-key-files",
        metavar="FILE",
        help="the PEM file with the private key of encrypted segments; of several keys <key id>:<file>, with commas",
    )


def add_local_only(parser: argparse.ArgumentParser, help_text: str) -> None:
    """`--local-only`: continue without the offsets that a broker has moved to remote storage."""
    parser.add_argument("--local-only", action="store_true", help=help_text)


def open_log_dir(options: argparse.Namespace) -> LogDir:
    """The log directory at `--path`, native or a broker's."""
    from pyspark_kafkalog.log_dir import LogDir

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
    from pyspark_kafkalog.root.brokers.notices import reading_notices

    for notice in reading_notices(log_dir.root.partitions_read() if partitions is None else partitions):
        sys.stderr.write(f"kafkalog {command}: {notice}\n")


def warn_of_remote_offsets(command: str, partitions: Iterable[PartitionSnapshot]) -> None:
    """Print to sys.stderr which offsets of the partitions are in remote storage."""
    from pyspark_kafkalog.root.brokers.notices import in_remote_storage

    notice = in_remote_storage(partitions)
    if notice is not None:
        sys.stderr.write(f"kafkalog {command}: {notice}\n")


def first_since(
    log_dir: LogDir, partition: PartitionSnapshot, time_ms: int, *, local_only: bool
) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one; None if there is none.

    Raises OffsetOutOfRangeError if offsets are in remote storage, where that record may be, unless `local_only`.
    """
    from pyspark_kafkalog.root.brokers.notices import remote_offsets

    if partition.remote_offsets_count and not local_only:
        raise OffsetOutOfRangeError(
            f"the offset at a time may be in remote storage: {remote_offsets(partition)}; --local-only searches the "
            "offsets in this directory"
        )
    reader = log_dir.reader(partition.topic, partition.partition)
    return reader.offset_for_timestamp(time_ms, partition.readable_start_offset, partition.high_watermark)


@dataclass(slots=True)
class Failures:
    """What a command has left out, so that it shows the rest; the reasons go to sys.stderr."""

    command: str
    exit_code: int = 0

    def add(self, error: Exception, what: str = "") -> None:
        """Say why something is left out; `what` names it if the error does not."""
        sys.stdout.flush()
        sys.stderr.write(f"kafkalog {self.command}: {what}{': ' if what else ''}{one_line(error)}\n")
        self.exit_code = 1

    @contextlib.contextmanager
    def kept(self, what: str = "") -> Iterator[None]:
        """Keep the error of the block: the command continues without the block's results."""
        try:
            yield
        except (KafkalogError, OSError) as error:
            self.add(error, what)


def describe_topic(failures: Failures, log_dir: LogDir, name: str) -> TopicDescription:
    """The topic, without partitions that cannot be read; these are among the failures."""
    described = log_dir.topic(name, readable_only=True)
    for number, error in described.unreadable.items():
        failures.add(error, f"{name}-{number}")
    return described


def say_what_it_follows(root: Root) -> None:
    """Say on standard error which leader the log directory follows, if it follows one."""
    from pyspark_kafkalog.metadata.following import following_text

    if root.follows is not None:
        sys.stderr.write(printable(f"{root.path} {following_text(root.native().store.image)}") + "\n")


def positive(text: str) -> int:
    """The argparse type of integers of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


def node_id_of(root: Root) -> int | None:
    """The node id of a log directory; None if it has none, also for directories of several nodes."""
    if not root.directories and not root.is_broker_directory:
        return root.native().store.image.node.broker_id
    return node_id_in(root.directories)


def node_id_in(directories: Iterable[Path]) -> int | None:
    """The node id of directories; None if meta.properties, or the node id in it, is missing, or if they differ."""
    from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties
    from pyspark_kafkalog.storage.names import META_PROPERTIES

    try:
        node_ids = {read_meta_properties(each / META_PROPERTIES).node_id for each in directories}
    except (DiskFormatError, OSError):
        return None  # partition folders copied out of a broker's directory have none
    return node_ids.pop() if len(node_ids) == 1 else None


def one_line(error: BaseException) -> str:
    """The error's text on one line, escaped; for errors of the system, the file and the reason without the number."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        files = [str(each) for each in (error.filename, error.filename2) if each is not None]
        if files:
            text = f"{' -> '.join(files)}: {error.strerror}"
        elif type(error) is not OSError:
            text = error.strerror
    return printable(" ".join(text.split()))


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the block as Ctrl-C does, so that unfinished work is recorded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from pyspark_kafkalog.maintenance.jobs.tasks import ending_signals

    before = {number: signal.signal(number, signal.default_int_handler) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def utc_time(timestamp_ms: int) -> str:
    """The time in UTC, in milliseconds; the number itself if it is outside the calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


@contextlib.contextmanager
def serving_metrics(registry: CollectorRegistry, address: Address) -> Iterator[str]:
    """Serve the metrics of `registry` to Prometheus during the block; the value is their URL.

    Raises OSError, which names the address, if it cannot be listened on.
    """
    from prometheus_client import make_wsgi_app

    from pyspark_kafkalog.server.config import Address
    from pyspark_kafkalog.server.process.status_page import start_pages

    port, close = start_pages(address, make_wsgi_app(registry))
    try:
        yield f"http://{Address(address.host, port)}/metrics"
    finally:
        close()
