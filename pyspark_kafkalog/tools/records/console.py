"""`kafkalog console-consumer` and `console-producer` while they run, and the consumer that perf-test uses too.

    consumer = Consumer(log_dir, selects, ...)
    for chunk in consumer.poll():      the batches available now, partition by partition
        ...
        consumer.seen(chunk)           moves the position behind the records that were used

A position that is no longer in the log is reset according to `reset`, as with auto.offset.reset.

The producer takes pieces of the input, and makes a commit for each.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.errors import InvalidRecordError, OffsetOutOfRangeError, ReadOnlyLogDirError
from pyspark_kafkalog.log_dir import FlushMode, IsolationLevel, LogDir
from pyspark_kafkalog.record.arrow import RECORD_SCHEMA
from pyspark_kafkalog.root.snapshot import PartitionSnapshot, remote_offsets
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition, validate_topic_name
from pyspark_kafkalog.tools.command import UsageError, include_pattern, one_line, selected_topics, topic_pattern
from pyspark_kafkalog.tools.dump.java_text import parse_long
from pyspark_kafkalog.tools.records.commands import DEFAULT_FORMATTER, LINE_READER
from pyspark_kafkalog.tools.records.record_format import (
    FORMATTERS,
    CoordinatorFormat,
    FormatString,
    JsonFormat,
    LineFormat,
    RecordFormat,
    deserializers_of,
    key_bytes,
)
from pyspark_kafkalog.tools.running import (
    ending_cleanly,
    first_since,
    is_true,
    open_log_dir,
    parse_properties_options,
    warn_of_unread_offsets,
)

_FORMATTERS: Final = "org.apache.kafka.tools.consumer."
_LOGGING_FORMATTER: Final = "LoggingMessageFormatter"  # prints the same text and also logs it
_NO_FORMATTER: Final = "NoOpMessageFormatter"
_EARLIEST: Final = "earliest"
_LATEST: Final = "latest"
_FOREVER_S: Final = float("inf")
_AUTO_COMMIT_MS: Final = "5000"
_READ_BYTES: Final = 1 << 20
_COMMIT_BYTES: Final = 32 << 20
_LINE_BYTES_MAX: Final = 256 << 20


#: Keeps some records of a batch.
_Filter: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]


class _Format(Protocol):
    """Formats records as text."""

    def columns(self) -> list[str]: ...

    def text(self, batch: pa.RecordBatch) -> bytes: ...


def run_consumer(options: argparse.Namespace) -> int:
    """Print records to sys.stdout, and finally their number to sys.stderr."""
    properties = parse_properties_options(options.consumer_property, options.consumer_config)
    _take_properties(options, properties)
    offset = _check(options)
    format_properties = _format_properties(options)
    formatter = _formatter(options, format_properties)
    filters = [each for each in (_key_filter(options, format_properties), _grep(options)) if each is not None]
    log_dir = open_log_dir(options)
    if options.group is not None and options.auto_commit and log_dir.root.has_broker_coordinator:
        raise ReadOnlyLogDirError(
            f"{log_dir.path} is a Kafka broker's log directory, which is read-only: no group's progress can be "
            "committed. Omit --group, or add --consumer-property enable.auto.commit=false"
        )
    printing = _Printing(_consumer(options, log_dir, formatter, offset, filters), formatter, options, log_dir)
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
    is_early = options.from_beginning or options.to_time is not None
    reset = properties.get("auto.offset.reset", _EARLIEST if is_early else _LATEST)
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

    name = properties.get("key.deserializer", "StringDeserializer")
    return _KeyFilter([key_bytes(text, name) for text in options.key])


def _grep(options: argparse.Namespace) -> _Grep | None:
    return None if options.grep is None else _Grep(options.grep)


class _Grep:
    """Keeps the records with the pattern in the bytes of their key or value. Raises UsageError for no pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        try:
            self._found(pa.array([b""], pa.binary()))
        except pa.ArrowInvalid as error:
            raise UsageError(f"--grep {pattern}: {str(error).removeprefix('Invalid regular expression: ')}") from error

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.or_(self._found(batch.column("key")), self._found(batch.column("value"))))

    def _found(self, texts: pa.Array) -> pa.Array:
        return pc.fill_null(pc.match_substring_regex(texts, self._pattern), False)


class _KeyFilter:
    """Keeps the records that have one of the keys."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = pa.array(keys, pa.binary())

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.is_in(batch.column("key"), value_set=self._keys))


def _formatter(options: argparse.Namespace, properties: Mapping[str, str]) -> _Format | None:
    """The formatter of the records, None if nothing is to be printed."""
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
    if name not in (DEFAULT_FORMATTER, _LOGGING_FORMATTER):
        known = ", ".join((DEFAULT_FORMATTER, _NO_FORMATTER, *FORMATTERS))
        raise UsageError(f"formatter {options.formatter} is not known; known are {known}")
    if options.output == "json":
        return JsonFormat(deserializers_of(properties))
    return RecordFormat.from_properties(properties)


def _consumer(
    options: argparse.Namespace,
    log_dir: LogDir,
    formatter: _Format | None,
    offset: int | None,
    filters: Sequence[_Filter],
) -> Consumer:
    names = {"offset", *(formatter.columns() if formatter is not None else ())}
    names |= {"key", "value"} if filters else set()
    schema = pa.schema([field for field in RECORD_SCHEMA if field.name in names])
    only = [TopicPartition(options.topic, number) for number in dict.fromkeys(options.partition or ())]
    is_early = options.reset == _EARLIEST or (options.offset or "").lower() == _EARLIEST
    reset: Reset = "earliest" if is_early else "latest"
    start = {} if offset is None else dict.fromkeys(only, offset)
    if options.group is not None:
        start = {name: committed.offset for name, committed in log_dir.group(options.group).fetch().items()}
    return Consumer(
        log_dir,
        selection(log_dir, options.topic, options.include),
        schema=schema,
        reset=reset,
        isolation=options.isolation_level,
        only=only,
        keep=filters,
        start=start,
        local_only=options.local_only,
        since_ms=options.from_time,
        until_ms=options.to_time,
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
            if self._consumer.is_bounded or time.monotonic() >= until_s:
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


# Records as they arrive

Reset = Literal["earliest", "latest"]

#: The wait before the next poll: the first one, and the maximum. A poll of a native log directory costs one failed
#: open; in a broker's directory all partitions are opened again.
_FIRST_WAIT_S: Final = 0.01
_LONGEST_WAIT_S: Final = 0.2
_BROKERS_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one partition; `next_offset` is the position after all of them."""

    topic_partition: TopicPartition
    batch: pa.RecordBatch
    next_offset: int


def selection(log_dir: LogDir, topic: str | None, include: str | None) -> Callable[[str], bool]:
    """What `--topic` selects, or else `--include`, which never selects internal topics.

    Topics that are created later are selected if they match. Raises UsageError for no pattern, UnknownTopicError if
    there is no topic that `topic` selects.
    """
    if topic is not None:
        topics = log_dir.topics()
        if not selected_topics(topic, topics):
            log_dir.partition_numbers(topic)  # raises the error
        return topic.__eq__ if topic in topics else topic_pattern(topic).matches
    assert include is not None, "one of the two is required"
    pattern = include_pattern(include)
    return lambda name: name not in INTERNAL_TOPICS and pattern.matches(name)


class Consumer:
    """Reads the topics that `selects` names, or the partitions `only`; those created later are read from the start.

    `keep` filter each batch of records; positions pass the records that they drop. `start` gives starting positions,
    `since_ms` the time of the first record; without either, `reset` applies. With `until_ms` the first poll reads all
    that there is before the first record of that time, and nothing is to be read after it.

    `schema` is a subset of KAFKA_SCHEMA's columns that includes offset. Positions in remote storage raise
    OffsetOutOfRangeError; with `local_only` reading continues at the first offset in the directory.
    """

    def __init__(
        self,
        log_dir: LogDir,
        selects: Callable[[str], bool],
        *,
        schema: pa.Schema,
        reset: Reset,
        isolation: IsolationLevel,
        only: Collection[TopicPartition] = (),
        keep: Sequence[_Filter] = (),
        start: Mapping[TopicPartition, int] | None = None,
        local_only: bool = False,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> None:
        self._log_dir = log_dir
        self._selects = selects
        self._schema = schema
        self._reset = reset
        self._is_committed = isolation == "read_committed"
        self._only = only
        self._keep = keep
        self._local_only = local_only
        self._start = dict(start or {})
        self.is_bounded = until_ms is not None
        self._ends: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        for name, found in self._partitions():
            if until_ms is not None:
                self._ends[name] = self._first_since(found, until_ms)
            if since_ms is not None:
                self._start[name] = self._first_since(found, since_ms)
            self.positions[name] = self._local(found, self._in_range(found, self._start.get(name, -1)))

    def poll(self) -> Iterator[Chunk]:
        """The batches available now. Raises the errors of LogReader.read."""
        for name, found in self._partitions():
            if name not in self.positions:
                self.positions[name] = self._local(found, found.log_start_offset)
            position = self.positions[name]
            end = found.readable_end("read_committed" if self._is_committed else "read_uncommitted")
            if self.is_bounded:
                end = min(end, self._ends.get(name, 0))  # a partition that was created since has no part in it
            if not found.log_start_offset <= position <= found.high_watermark:
                position = self._in_range(found, position)
            position = self.positions[name] = self._local(found, position)
            if position < end:
                yield from self._read(name, position, end)

    def seen(self, chunk: Chunk, count: int | None = None) -> None:
        """Move the position behind the first `count` records of the chunk, or behind all of them."""
        if count is None or count >= len(chunk.batch):
            self.positions[chunk.topic_partition] = chunk.next_offset
        elif count:
            self.positions[chunk.topic_partition] = chunk.batch.column("offset")[count - 1].as_py() + 1

    def wait(self, until_s: float) -> None:
        """Wait until there may be new records, at most until the monotonic time `until_s`."""
        wait_s = _BROKERS_WAIT_S if self._log_dir.version is None else _FIRST_WAIT_S
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(wait_s, left_s))
            wait_s = min(wait_s * 1.5, max(_LONGEST_WAIT_S, wait_s))
            before = self._log_dir.version
            self._log_dir.refresh()
            if before is None or before != self._log_dir.version:
                return

    def _read(self, name: TopicPartition, start: int, end: int) -> Iterator[Chunk]:
        reader = self._log_dir.reader(*_pair(name))
        try:
            for batch in reader.read(start, end, schema=self._schema, committed=self._is_committed):
                if len(batch):
                    next_offset = batch.column("offset")[-1].as_py() + 1
                    for keep in self._keep:
                        batch = keep(batch)
                    yield Chunk(name, batch, next_offset)
        except OffsetOutOfRangeError:
            # Retention deleted the records first. The next poll applies `reset`.
            self._log_dir.refresh()
            if self.positions[name] >= self._log_dir.partition(*_pair(name)).log_start_offset:
                raise
            return
        # The position also passes control records and gaps that compaction left at the end.
        if self.positions[name] >= start:
            self.positions[name] = max(self.positions[name], end)

    def _partitions(self) -> Iterator[tuple[TopicPartition, PartitionSnapshot]]:
        if self._only:
            for each in self._only:
                yield each, self._log_dir.partition(*_pair(each))
            return
        for topic in self._log_dir.topics():
            if self._selects(topic):
                for found in self._log_dir.topic(topic).partitions:
                    yield TopicPartition(topic, found.partition), found

    def _first_since(self, found: PartitionSnapshot, since_ms: int) -> int:
        """The offset of the first record with that timestamp or a later one; the end where there is none yet."""
        first = first_since(self._log_dir, found, since_ms, local_only=self._local_only)
        return found.high_watermark if first is None else first.offset

    def _local(self, found: PartitionSnapshot, position: int) -> int:
        """`position`; if it is in remote storage and `local_only` is set, the first offset in the directory."""
        if position >= found.readable_start_offset:
            return position
        if not self._local_only:
            raise OffsetOutOfRangeError(f"{remote_offsets(found)}; --local-only starts there")
        return found.readable_start_offset

    def _in_range(self, found: PartitionSnapshot, position: int) -> int:
        if found.log_start_offset <= position <= found.high_watermark:
            return position
        return found.log_start_offset if self._reset == "earliest" else found.high_watermark


def _pair(name: TopicPartition) -> tuple[str, int]:
    return name.topic, name.partition


def run_producer(options: argparse.Namespace) -> int:
    """Write the lines of sys.stdin until its end."""
    if options.line_reader != LINE_READER:
        raise UsageError(f"--line-reader {options.line_reader} is not known, only {LINE_READER}")
    validate_topic_name(options.topic)
    line_format = LineFormat.from_properties(parse_properties_options(options.properties, options.reader_config))
    log_dir = LogDir.open_or_create(options.path)
    log_dir.root.check_writable()  # before lines are read that could not be written
    produce = _Producer(log_dir, line_format, options)
    with ending_cleanly():
        for text in _texts(sys.stdin.fileno(), linger_s=0 if options.sync else options.timeout / 1000):
            produce(text)
    return 0


class _Producer:
    """Writes pieces of text, each of which consists of whole lines."""

    def __init__(self, log_dir: LogDir, line_format: LineFormat, options: argparse.Namespace) -> None:
        self._log_dir = log_dir
        self._format = line_format
        self._topic: str = options.topic
        self._codec: str = options.compression_codec
        self._flush: FlushMode = options.flush
        self._is_sync: bool = options.sync
        self._line_number = 1

    def __call__(self, text: bytes) -> None:
        if not text:
            return

        lines = pc.split_pattern(pa.array([text], pa.binary()), pattern="\n").values
        if text.endswith(b"\n"):
            lines = lines[:-1]
        batch, error = self._format.parse(lines, self._line_number)
        self._line_number += len(lines)
        step = 1 if self._is_sync else max(len(batch), 1)
        for at in range(0, len(batch), step):
            rows = batch[at : at + step]
            self._log_dir.append(self._topic, rows, compression_type=self._codec, flush=self._flush)
        if error is not None:
            raise error


def _texts(fd: int, *, linger_s: float) -> Iterator[bytes]:
    """The input on `fd`, in pieces of whole lines with Unix line ends; the last line may lack its end.

    A piece is yielded `linger_s` after its first byte arrived, or when it has _COMMIT_BYTES. On an interrupt, the bytes
    read so far are yielded first.
    """
    has_prompt = os.isatty(fd) and sys.stdout.isatty()
    pending = bytearray()
    due_s = 0.0
    while True:
        if has_prompt:
            sys.stdout.write(">")
            sys.stdout.flush()
        try:
            data = _read(fd, max(due_s - time.monotonic(), 0.0) if pending else None)
        except KeyboardInterrupt:
            yield _as_lines(pending)
            raise
        if data == b"":
            break
        if not pending:
            due_s = time.monotonic() + linger_s
        pending += data or b""
        if data is None or len(pending) >= _COMMIT_BYTES or time.monotonic() >= due_s:
            end = pending.rfind(b"\n") + 1
            if end:
                yield _as_lines(pending[:end])
                del pending[:end]
            if len(pending) > _LINE_BYTES_MAX:
                raise UsageError(f"a line of more than {_LINE_BYTES_MAX} bytes: expected lines of text")
            due_s = time.monotonic() + linger_s
    yield _as_lines(pending)


def _read(fd: int, timeout_s: float | None) -> bytes | None:
    """The next bytes; b"" at the end of the input, None if no byte arrived within `timeout_s`."""
    poll = select.poll()  # takes any descriptor; select() none above 1023
    poll.register(fd, select.POLLIN)
    ready = poll.poll(None if timeout_s is None else timeout_s * 1000)
    return os.read(fd, _READ_BYTES) if ready else None


def _as_lines(text: bytearray) -> bytes:
    """`text` with line ends of Windows and old Macs converted to those of Unix, as Java reads lines."""
    data = bytes(text)
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
