"""Common parts of the commands: `--path`, errors, notices, and values of options.

A command is a module of this package that main.py lists. Its docstring is the text of --help; the part after its line
"examples:" is printed after the options. A command has two functions:

    add_arguments(parser)       adds its options to an argparse parser, with add_path and add_output of output.py
    run(options) -> int         runs the command, prints through an Output, returns the exit code

A module with several commands has a table COMMANDS instead, with a `Command` by name.

main.py prints every KafkalogError and OSError that run raises in one line on sys.stderr and exits with 1, so commands
catch only errors that they can handle. Contradictory options raise a UsageError, which exits with 2. A command that
loads compiled code or Arrow has its options in a module without these, and names its function with `later`.

Values on the command line: numbers, points in time, settings, and the topics and partitions that an option selects.

    positive                the argparse type of counts
    --time, --from-time     milliseconds since 1970, or ISO 8601
    --property              NAME=VALUE, also from a Java properties file
    --topic                 a topic's name, or a Java regular expression for the whole name; a comma means "or"
    --include               the same, but a comma is literal, as in console-consumer
    --topic-partitions      topic:partition,topic:from-to,:-to,... with a regular expression for each topic

Source of the rules: org.apache.kafka.server.util.TopicFilter.IncludeList, org.apache.kafka.tools.GetOffsetShell and
org.apache.kafka.tools.consumer.ConsoleConsumer.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark_kafkalog.errors import InvalidOptionError, KafkalogError
from pyspark_kafkalog.java_regex.patterns import TopicPattern, compile_topic_pattern
from pyspark_kafkalog.object_store.location import is_object_url, parse_location
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.dump.java_text import parse_long
from pyspark_kafkalog.units import EPOCH, INT32_MAX, printable
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir

#: The help text of options that accept both.
FORMS: Final = "ms since 1970, or ISO 8601, in UTC unless it names an offset: 2026-01-31T10:15:00"

#: The environment variable that stands for --path.
PATH_VARIABLE: Final = "KAFKALOG_PATH"

_ISO: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?)?(Z|z|[+-]\d\d(?::?\d\d)?)?")

#: java.time.ZoneOffset
_ZONE_HOURS_MAX: Final = 18


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


PartitionFilter: TypeAlias = Callable[[TopicPartition], bool]

_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_ANY_TOPIC: Final = ".*"
_PARTITION_DIGITS_MAX: Final = 10


def topic_pattern(text: str) -> TopicPattern:
    """The pattern that a topic's whole name must match: enclosing quotes and blanks are dropped, a comma means "or"."""
    return include_pattern(text.strip().replace(",", "|").replace(" ", "").strip("\"'"))


def include_pattern(text: str) -> TopicPattern:
    """The pattern that a topic's whole name must match, unchanged."""
    try:
        return compile_topic_pattern(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


def selected_topics(text: str, topics: Iterable[str]) -> list[str]:
    """Those of `topics` that a `--topic` selects: the one with exactly this name, else all that match the pattern."""
    names = sorted(topics)
    if text in names:
        return [text]
    pattern = topic_pattern(text)
    return [name for name in names if pattern.matches(name)]


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
    """The partitions that values of --topic name (`topic`, a pattern or `topic:0,1`), and those without a topic."""
    found: list[TopicPartition] = []
    unknown: list[str] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        if colon:
            found += [TopicPartition(topic, _partition_number(number, text)) for number in numbers.split(",")]
            continue
        names = selected_topics(topic, log_dir.topics())
        found += [TopicPartition(name, each) for name in names for each in log_dir.root.partition_numbers(name)]
        unknown += [] if names else [topic]
    return list(dict.fromkeys(found)), unknown


def _partition_number(text: str, argument: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _PARTITION_DIGITS_MAX:
        raise UsageError(f"Invalid partition '{text}' specified in topic arg '{argument}'")
    return int(text)


class UsageError(KafkalogError):
    """Options that contradict each other, or an invalid value of an option."""


#: The exit code for wrong options.
USAGE_EXIT_CODE: Final = 2


def exit_code_of(error: Exception) -> int:
    """The exit code of a command that ends with `error`: 2 for wrong options, 1 for all others."""
    return USAGE_EXIT_CODE if isinstance(error, (UsageError, InvalidOptionError)) else 1


@dataclass(frozen=True, slots=True)
class Command:
    """One command: the text of --help, and its two functions."""

    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def later(function: str) -> Callable[[argparse.Namespace], int]:
    """The `run` of a command that loads much: a function, `module:name` below this package, imported when it is called.

    So that --help and mistakes in options are answered at once.
    """

    def run(options: argparse.Namespace) -> int:
        module, _, name = function.partition(":")
        with without_collections():
            loaded = importlib.import_module(f"{__package__}.{module}")
        exit_code: int = getattr(loaded, name)(options)
        return exit_code

    return run


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


def add_path(
    parser: argparse.ArgumentParser,
    help_text: str = "the log directory, or to read several directories of brokers, with commas between",
    *,
    required: bool = True,
) -> None:
    """`--path ROOT`, the counterpart of --bootstrap-server of Kafka's tools.

    The environment variable KAFKALOG_PATH stands for it. Without `required` the parser applies the variable itself,
    unless an option is given that replaces --path.
    """
    default = path_of_environment() if required else None
    parser.add_argument(
        "--path",
        required=required and default is None,
        default=default,
        metavar="ROOT",
        type=path_or_url,
        help=f"{help_text} (default: ${PATH_VARIABLE})",
    )


def path_of_environment() -> str | None:
    """The value of KAFKALOG_PATH; None if it is empty or not set."""
    return os.environ.get(PATH_VARIABLE) or None


def path_or_url(text: str) -> Path | str:
    """`text` as a path, unless it is the URL of a place in an object store."""
    return text if is_object_url(text) else local_path(text)


def local_path(text: str) -> Path:
    """`text`, a path or a `file:` URL, as a path; argparse reports a URL of anything else."""
    try:
        place = parse_location(text)
    except InvalidOptionError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not isinstance(place, Path):
        raise argparse.ArgumentTypeError(f"expected a path on a file system, found {place}")
    return place


def add_path_or_remote_storage(parser: argparse.ArgumentParser) -> None:
    """`--path ROOT` and the options of `add_remote_storage`; `open_log_dir` requires one of them."""
    add_path(parser, "the log directory; not needed with --remote-storage", required=False)
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


def positive(text: str) -> int:
    """The argparse type of integers of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return int(text)


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


def utc_time(timestamp_ms: int) -> str:
    """The time in UTC, in milliseconds; the number itself if it is outside the calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
