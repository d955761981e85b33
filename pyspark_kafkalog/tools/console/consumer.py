"""`kafkalog console-consumer`: print the records of topics as they arrive, as kafka-console-consumer does.

Options and output are those of kafka-console-consumer, with --path in place of --bootstrap-server. Reading starts at
the end of the log, or as given by --from-beginning, --from-time, --offset or the committed offsets of --group. It
continues until --max-messages, --timeout-ms without a record, or Ctrl-C. A group's offsets are committed to
__consumer_offsets every five seconds and at the end. --property sets the output format:

  print.timestamp, print.partition, print.offset, print.headers, print.key, print.value  (true or false)
  key.separator=TEXT (a tab)   line.separator=TEXT   headers.separator=TEXT (,)   null.literal=TEXT (null)
  key.deserializer, value.deserializer, headers.deserializer  (class names: StringDeserializer, LongDeserializer, ...)

-f, --format takes a format string, as kcat does; records are separated only by what the format contains:

  %t topic   %p partition   %o offset   %k key   %s value   %T timestamp (ms)   %h headers (name=value,name=value)
  %K, %S length of key, value (-1: null)   %R length of value in 4 bytes   %% percent sign   \\n \\t \\r \\xHH bytes

A null key or value is empty, or null.literal if that is set. --output json prints one object for each record.

--key prints only records with this key, in all partitions that are read; --max-messages counts these. It is compared
with the bytes of the key as UTF-8, or as a number with key.deserializer ShortDeserializer, IntegerDeserializer or
LongDeserializer. Without --partition all partitions are searched: which one a key is in depends on the producer.

--formatter takes Kafka's class names: DefaultMessageFormatter, NoOpMessageFormatter, and for internal topics
OffsetsMessageFormatter, GroupMetadataMessageFormatter and TransactionLogMessageFormatter.

examples:
  kafkalog console-consumer --path /data/log --topic orders --from-beginning --max-messages 10
  kafkalog console-consumer --path /data/log --topic orders --property print.key=true --property print.timestamp=true
  kafkalog console-consumer --path /data/log --topic orders --partition 0 --offset 4200 --timeout-ms 1000
  kafkalog console-consumer --path /data/log --topic orders --from-time 2026-01-31T10:00:00 --timeout-ms 1000
  kafkalog console-consumer --path /data/log --topic orders --from-beginning --timeout-ms 0 --key customer-7 \\
      -f '%p %o %T %k: %s\\n'
  kafkalog console-consumer --path /data/log --topic __consumer_offsets --from-beginning \\
      --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from pyspark_kafkalog.errors import InvalidRecordError, ReadOnlyLogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import (
    FORMS,
    UsageError,
    add_local_only,
    add_path_or_remote_storage,
    add_read_to_log_end,
    one_line,
    time_ms,
)
from pyspark_kafkalog.tools.console.follow import Consumer, Reset, selection
from pyspark_kafkalog.tools.dump.java_text import parse_long
from pyspark_kafkalog.tools.output import add_output
from pyspark_kafkalog.tools.running import (
    ending_cleanly,
    is_true,
    open_log_dir,
    parse_properties_options,
    warn_of_unread_offsets,
)

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATTERS: Final = "org.apache.kafka.tools.consumer."
_DEFAULT_FORMATTER: Final = "DefaultMessageFormatter"
_LOGGING_FORMATTER: Final = "LoggingMessageFormatter"  # prints the same text and also logs it
_NO_FORMATTER: Final = "NoOpMessageFormatter"
_EARLIEST: Final = "earliest"
_LATEST: Final = "latest"
_FOREVER_S: Final = float("inf")
_AUTO_COMMIT_MS: Final = "5000"


class _Format(Protocol):
    """Formats records as text."""

    def columns(self) -> list[str]: ...

    def text(self, batch: pa.RecordBatch) -> bytes: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-console-consumer, and `--path`."""
    add_path_or_remote_storage(parser)
    add_read_to_log_end(parser)
    add_local_only(parser, "start at the first offset in the directory if earlier ones are in remote storage")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topic", metavar="TOPIC", help="the topic to read")
    what.add_argument("--include", metavar="REGEX", help="a regular expression of topics, without internal ones")
    parser.add_argument(
        "--partition", type=int, action="append", metavar="N", help="only this partition; may be repeated"
    )
    parser.add_argument("--offset", metavar="N", help="where to start: a number, earliest or latest (--partition)")
    parser.add_argument("--from-time", type=time_ms, metavar="TIME", help=f"start at the first record since: {FORMS}")
    parser.add_argument("--from-beginning", action="store_true", help="start at the log start, not at the end")
    parser.add_argument(
        "--group", metavar="GROUP", help="start at this group's committed offsets, and commit its progress"
    )
    parser.add_argument("--max-messages", type=int, default=-1, metavar="N", help="stop after this many records")
    parser.add_argument(
        "--timeout-ms", type=int, default=-1, metavar="MS", help="stop after this time without a record"
    )
    parser.add_argument(
        "--key", action="append", metavar="KEY", help="only records with this key, see above; may be repeated"
    )
    parser.add_argument("--isolation-level", choices=("read_uncommitted", "read_committed"), default="read_uncommitted")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--formatter", default=_DEFAULT_FORMATTER, metavar="CLASS", help="the formatter of records")
    how.add_argument("-f", "--format", metavar="FORMAT", help="a format string as kcat's -f, see above")
    parser.add_argument(
        "--property",
        "--formatter-property",
        dest="properties",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the output format, see above; may be repeated",
    )
    parser.add_argument(
        "--formatter-config", metavar="FILE", type=Path, help="a properties file; --property overrides it"
    )
    for name in ("key", "value"):
        parser.add_argument(f"--{name}-deserializer", metavar="CLASS", help=f"the deserializer of the {name}")
    parser.add_argument("--skip-message-on-error", action="store_true", help="skip records that cannot be formatted")
    parser.add_argument(
        "--consumer-property",
        "--command-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="group.id, auto.offset.reset, enable.auto.commit or auto.commit.interval.ms; others have no effect",
    )
    parser.add_argument(
        "--consumer.config",
        "--command-config",
        dest="consumer_config",
        metavar="FILE",
        type=Path,
        help="a file of such properties",
    )
    add_output(parser, "one object a line, by record")


def run(options: argparse.Namespace) -> int:
    """Print records to sys.stdout, and finally their number to sys.stderr."""
    properties = parse_properties_options(options.consumer_property, options.consumer_config)
    _take_properties(options, properties)
    offset = _check(options)
    format_properties = _format_properties(options)
    formatter = _formatter(options, format_properties)
    keep = _key_filter(options, format_properties)
    log_dir = open_log_dir(options)
    if options.group is not None and options.auto_commit and log_dir.is_broker_directory:
        raise ReadOnlyLogDirError(
            f"{log_dir.path} is a Kafka broker's log directory, which is read-only: no group's progress can be "
            "committed. Omit --group, or add --consumer-property enable.auto.commit=false"
        )
    if options.topic is not None:
        log_dir.partition_numbers(options.topic)
    printing = _Printing(_consumer(options, log_dir, formatter, offset, keep), formatter, options, log_dir)
    warn_of_unread_offsets("console-consumer", log_dir)
    with ending_cleanly():
        try:
            printing.run()
        finally:
            printing.commit()
            sys.stderr.write(f"Processed a total of {printing.count} messages\n")
    return 0


def _take_properties(options: argparse.Namespace, properties: Mapping[str, str]) -> None:
    """Apply the client's properties as options. Raises UsageError if they contradict the given options."""
    group = properties.get("group.id", options.group)
    if options.group not in (None, group):
        raise UsageError(f"--group says '{options.group}', group.id '{group}': please remove one")
    options.group = group
    reset = properties.get("auto.offset.reset", _EARLIEST if options.from_beginning else _LATEST)
    if reset not in (_EARLIEST, _LATEST):
        raise UsageError(f"auto.offset.reset={reset} is not known, only {_EARLIEST} and {_LATEST}")
    if options.from_beginning and reset != _EARLIEST:
        raise UsageError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', please remove one option"
        )
    options.reset = reset
    interval = parse_long(properties.get("auto.commit.interval.ms", _AUTO_COMMIT_MS))
    if interval is None or interval < 0:
        raise UsageError("auto.commit.interval.ms must be a number of 0 or more")
    options.auto_commit_s = interval / 1000
    options.auto_commit = is_true(properties, "enable.auto.commit", default=True)


def _check(options: argparse.Namespace) -> int | None:
    """The number of `--offset`, or None. Raises UsageError for options that kafka-console-consumer refuses."""
    if options.partition is not None:
        if options.topic is None:
            raise UsageError("The topic is required when partition is specified.")
        if options.from_beginning and options.offset is not None:
            raise UsageError("Options from-beginning and offset cannot be specified together.")
        if options.group is not None:
            raise UsageError("Options group and partition cannot be specified together.")
    elif options.offset is not None:
        raise UsageError("The partition is required when offset is specified.")
    if options.from_time is not None:
        others = {"from-beginning": options.from_beginning, "offset": options.offset, "group": options.group}
        given = [name for name, value in others.items() if value]
        if given:
            raise UsageError(f"Options from-time and {given[0]} cannot be specified together.")
    if options.offset is None or options.offset.lower() in (_EARLIEST, _LATEST):
        return None
    offset = parse_long(options.offset)
    if offset is None or offset < 0:
        raise UsageError(
            f"The provided offset value '{options.offset}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )
    return offset


def _format_properties(options: argparse.Namespace) -> dict[str, str]:
    """The properties of --formatter-config, --key-deserializer, --value-deserializer and --property, in this order."""
    properties = parse_properties_options((), options.formatter_config)
    for name in ("key", "value"):
        class_name = getattr(options, f"{name}_deserializer")
        if class_name:
            properties[f"{name}.deserializer"] = class_name
    return properties | parse_properties_options(options.properties)


def _key_filter(options: argparse.Namespace, properties: Mapping[str, str]) -> _KeyFilter | None:
    """The filter that --key names."""
    if options.key is None:
        return None
    from pyspark_kafkalog.tools.console.record_format import key_bytes

    name = properties.get("key.deserializer", "StringDeserializer")
    return _KeyFilter([key_bytes(text, name) for text in options.key])


class _KeyFilter:
    """Keeps the records that have one of the keys."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        import pyarrow as pa

        self._keys = pa.array(keys, pa.binary())

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow.compute as pc

        return batch.filter(pc.is_in(batch.column("key"), value_set=self._keys))


def _formatter(options: argparse.Namespace, properties: Mapping[str, str]) -> _Format | None:
    """The formatter of the records, None if nothing is to be printed."""
    from pyspark_kafkalog.tools.console.record_format import (
        FORMATTERS,
        CoordinatorFormat,
        FormatString,
        JsonFormat,
        RecordFormat,
        deserializers_of,
    )

    name = options.formatter.removeprefix(_FORMATTERS)
    if options.format is not None:
        if options.output == "json":
            raise UsageError("Options format and output json cannot be specified together.")
        null_literal = properties.get("null.literal", "").encode()
        return FormatString(options.format, deserializers_of(properties), null_literal)
    if name == _NO_FORMATTER:
        return None
    if name in FORMATTERS:
        return CoordinatorFormat(name)
    if name not in (_DEFAULT_FORMATTER, _LOGGING_FORMATTER):
        known = ", ".join((_DEFAULT_FORMATTER, _NO_FORMATTER, *FORMATTERS))
        raise UsageError(f"formatter {options.formatter} is not known; known are {known}")
    if options.output == "json":
        return JsonFormat(deserializers_of(properties))
    return RecordFormat.from_properties(properties)


def _consumer(
    options: argparse.Namespace,
    log_dir: LogDir,
    formatter: _Format | None,
    offset: int | None,
    keep: _KeyFilter | None,
) -> Consumer:
    import pyarrow as pa

    from pyspark_kafkalog.record.arrow import RECORD_SCHEMA

    names = {"offset", *(formatter.columns() if formatter is not None else ()), *(("key",) if keep is not None else ())}
    schema = pa.schema([field for field in RECORD_SCHEMA if field.name in names])
    only = [TopicPartition(options.topic, number) for number in dict.fromkeys(options.partition or ())]
    is_early = options.reset == _EARLIEST or (options.offset or "").lower() == _EARLIEST
    reset: Reset = "earliest" if is_early else "latest"
    start = {} if offset is None else dict.fromkeys(only, offset)
    if options.group is not None:
        start = {name: committed.offset for name, committed in log_dir.group(options.group).fetch().items()}
    return Consumer(
        log_dir,
        selection(options.topic, options.include),
        schema=schema,
        reset=reset,
        isolation=options.isolation_level,
        only=only,
        keep=keep,
        start=start,
        local_only=options.local_only,
        since_ms=options.from_time,
    )


class _Printing:
    """Prints the records that the consumer reads until a limit is reached."""

    def __init__(
        self, consumer: Consumer, formatter: _Format | None, options: argparse.Namespace, log_dir: LogDir
    ) -> None:
        self.count = 0
        self._consumer = consumer
        self._format = formatter
        self._left: float = _FOREVER_S if options.max_messages < 0 else options.max_messages
        self._timeout_s: float = _FOREVER_S if options.timeout_ms < 0 else options.timeout_ms / 1000
        self._skips_errors: bool = options.skip_message_on_error
        self._group = log_dir.group(options.group) if options.group is not None and options.auto_commit else None
        self._auto_commit_s: float = options.auto_commit_s
        self._committed: dict[TopicPartition, int] = {}
        self._commit_due_s = time.monotonic() + self._auto_commit_s

    def run(self) -> None:
        if self._left <= 0:
            return
        until_s = time.monotonic() + self._timeout_s
        while True:
            for chunk in self._consumer.poll():
                batch = chunk.batch if len(chunk.batch) <= self._left else chunk.batch[: int(self._left)]
                self._print(batch)
                self._consumer.seen(chunk, len(batch))
                self._left -= len(batch)
                self._maybe_commit()
                until_s = time.monotonic() + self._timeout_s
                if self._left <= 0:
                    return
            sys.stdout.flush()
            self._maybe_commit()
            if time.monotonic() >= until_s:
                return
            self._consumer.wait(min(until_s, self._commit_due_s))

    def commit(self) -> None:
        """Commit the group's offsets if they have advanced."""
        if self._group is None:
            return
        ahead = {name: at for name, at in self._consumer.positions.items() if self._committed.get(name) != at}
        if ahead:
            sys.stdout.flush()  # records that could not be output (full disk, closed pipe) do not count as read
            self._group.commit(ahead)
            self._committed |= ahead

    def _maybe_commit(self) -> None:
        if time.monotonic() >= self._commit_due_s:
            self.commit()
            self._commit_due_s = time.monotonic() + self._auto_commit_s

    def _print(self, batch: pa.RecordBatch) -> None:
        self.count += len(batch)
        if self._format is None:
            return
        try:
            sys.stdout.buffer.write(self._format.text(batch))
        except InvalidRecordError as error:
            if len(batch) > 1:  # bisect until the batch has one record
                self.count -= len(batch)
                middle = len(batch) // 2
                self._print(batch[:middle])
                self._print(batch[middle:])
            elif self._skips_errors:
                sys.stderr.write(f"kafkalog console-consumer: skipping a record: {one_line(error)}\n")
            else:
                raise
