"""`kafkalog get-offsets`: print the start or end offsets of partitions, or their offsets at a time.

Options and output are those of kafka-get-offsets, one line topic:partition:offset per partition, with --path in place
of --bootstrap-server. --time takes

  latest         -1   the high watermark, which is the offset of the next record (the default)
  earliest       -2   the log start
  max-timestamp  -3   the first record with the largest timestamp, of those in the directory
  earliest-local -4   the first offset in the directory: above the log start only where the topic is tiered
  latest-tiered  -5   the last offset in remote storage; of a broker's directory with --remote-storage
  earliest-pending-upload -6
                      the first offset that is not in remote storage yet
  <time>              the first record with this timestamp or a later one: ms since 1970, or ISO 8601, in UTC unless
                      it names an offset

A partition without such a record is left out. For a broker's directory, a line on standard error states which offsets
are above the high watermark of its last checkpoint (--read-to-log-end counts them too), and which are in remote
storage; if some are, the offset at a time is an error unless --remote-storage or --local-only is given.

examples:
  kafkalog get-offsets --path /data/log --topic orders
  kafkalog get-offsets --path /data/log --topic-partitions 'orders:0-2,returns.*:0' --time earliest
  kafkalog get-offsets --path /data/log --topic orders --time 1767225600000 --output json
  kafkalog get-offsets --path /data/log --topic orders --time 2026-01-01T00:00:00+01:00
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, TopicPartition
from pyspark_kafkalog.tools.command import (
    Failures,
    UsageError,
    add_local_only,
    add_path_or_remote_storage,
    add_read_to_log_end,
    parse_time_ms,
    topic_partition_rules,
    topics_and_partitions,
)
from pyspark_kafkalog.tools.output import Tree, add_output, output_of
from pyspark_kafkalog.tools.running import first_since, open_log_dir, warn_of_remote_offsets, warn_of_unread_offsets

#: An offset, and the timestamp of its record if that was requested.
_Found = tuple[int, "int | None"]
#: The same with the partition.
_FoundIn = tuple["PartitionSnapshot", int, "int | None"]
_NAMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-get-offsets, `--path` and `--output`."""
    add_path_or_remote_storage(parser)
    add_read_to_log_end(parser)
    add_local_only(parser, "by time: search local offsets only, if the earliest are in remote storage")
    parser.add_argument(
        "--topic-partitions",
        metavar="T:P[,T:FROM-TO,...]",
        help="patterns of partitions; TO is exclusive; a topic and the ends of a range are optional",
    )
    parser.add_argument("--topic", metavar="TOPIC", help="a topic, or a regular expression of topics (default: all)")
    parser.add_argument("--partitions", metavar="P[,P]", help="numbers of partitions (default: all)")
    parser.add_argument("--time", default="latest", metavar="TIME", help="which offset (%(default)s)")
    parser.add_argument("--exclude-internal-topics", action="store_true", help="leave out Kafka's internal topics")
    add_output(parser, "one object a line, by partition")


def run(options: argparse.Namespace) -> int:
    """Print the offsets to sys.stdout."""
    if options.topic_partitions is not None:
        if options.topic is not None or options.partitions is not None:
            raise UsageError("--topic-partitions cannot be used with --topic or --partitions")
        is_selected = topic_partition_rules(options.topic_partitions)
    else:
        is_selected = topics_and_partitions(options.topic, options.partitions)
    offset_of = _offset_spec(options.time, local_only=options.local_only)
    log_dir = open_log_dir(options)
    partitions = _partitions(log_dir, is_selected, includes_internal=not options.exclude_internal_topics)
    output = output_of(options)
    failures = Failures("get-offsets")
    read: list[PartitionSnapshot] = []
    for each in partitions:
        with failures.kept(str(each)):
            partition = log_dir.partition(each.topic, each.partition)
            read.append(partition)
            found = offset_of(log_dir, partition)
            if found is not None:
                output.show((partition, *found), _tree, _text)
    if not partitions:
        raise UnknownTopicError("Could not match any topic-partitions with the specified filters")
    warn_of_unread_offsets("get-offsets", log_dir, read)
    warn_of_remote_offsets("get-offsets", read)
    return failures.exit_code


def _partitions(
    log_dir: LogDir, is_selected: Callable[[TopicPartition], bool], *, includes_internal: bool
) -> list[TopicPartition]:
    """The selected partitions, in the order of their names as text, like the output of kafka-get-offsets."""
    found = [
        each
        for name in log_dir.topics()
        if includes_internal or name not in INTERNAL_TOPICS
        for each in (TopicPartition(name, number) for number in log_dir.root.partition_numbers(name))
        if is_selected(each)
    ]
    return sorted(found, key=str)


def _tree(found: _FoundIn) -> Tree:
    partition, offset, timestamp_ms = found
    return {"topic": partition.topic, "partition": partition.partition, "offset": offset, "timestamp": timestamp_ms}


def _text(found: _FoundIn) -> str:
    partition, offset, _ = found
    return f"{partition.topic}:{partition.partition}:{offset}\n"


def _offset_spec(text: str, *, local_only: bool) -> Callable[[LogDir, PartitionSnapshot], _Found | None]:
    """The lookup that `--time` requests. Raises UsageError."""
    time_ms = _NAMES.get(text) or parse_time_ms(text)
    if time_ms is None or time_ms < -len(_NAMES):
        raise UsageError(
            f"Malformed time argument {text}. Please use {' / '.join(f'{n} or {name}' for name, n in _NAMES.items())}, "
            "or a specified long format timestamp, or ISO 8601"
        )
    if time_ms >= 0:
        return lambda log_dir, each: _at_time(log_dir, each, time_ms, local_only=local_only)
    specs: dict[int, Callable[[LogDir, PartitionSnapshot], _Found | None]] = {
        -1: lambda _, each: (each.high_watermark, None),
        -2: lambda _, each: (each.log_start_offset, None),
        -3: _at_max_timestamp,
        -4: lambda _, each: (each.local_log_start_offset, None),
        -5: lambda _, each: _known(each.latest_tiered_offset),
        -6: lambda _, each: _known(each.earliest_pending_upload_offset),
    }
    return specs[time_ms]


def _known(offset: int) -> _Found | None:
    return (offset, None) if offset >= 0 else None


def _at_time(log_dir: LogDir, partition: PartitionSnapshot, time_ms: int, *, local_only: bool) -> _Found | None:
    found = first_since(log_dir, partition, time_ms, local_only=local_only)
    return None if found is None else (found.offset, found.timestamp_ms)


def _at_max_timestamp(log_dir: LogDir, partition: PartitionSnapshot) -> _Found | None:
    reader = log_dir.reader(partition.topic, partition.partition)
    found = reader.offset_of_max_timestamp(partition.local_log_start_offset, partition.high_watermark)
    return None if found is None else (found.offset, found.timestamp_ms)
