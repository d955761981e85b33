"""`kafkalog history`: list the commits of a log directory: time, operation, writer, partitions.

There is one line for each partition that a commit wrote to, with the offset of its first record there, and the numbers
of records and bytes. Commits without records have one line for each topic that they changed. COMMIT is the commit's
offset in the commit log, VERSION that of the transactional id (the batch id of a streaming query). The newest commit
comes first; commits older than metadata.max.retention.ms are removed once a metadata snapshot covers them. Errors are
printed in one line, with exit code 1.

examples:
  kafkalog history --path /data/log --limit 20
  kafkalog history --path /data/log --topic orders --oldest-first
  kafkalog history --path /data/log --output json | jq 'select(.transactionalId != null)'
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.tools.command import (
    NO_VALUE,
    add_output,
    add_path,
    open_log_dir,
    positive,
    print_json,
    print_table,
    utc_time,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.history import HistoryEntry

_HEADER: Final = (
    "COMMIT",
    "TIME",
    "OPERATION",
    "TRANSACTIONAL-ID",
    "VERSION",
    "TOPIC",
    "PARTITION",
    "FIRST-OFFSET",
    "RECORDS",
    "BYTES",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, the choice of commits, and the form of the output."""
    add_path(parser)
    parser.add_argument("--topic", metavar="NAME", help="only commits that touched this topic, which may be deleted")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the newest N commits")
    parser.add_argument("--oldest-first", action="store_true", help="print them in the order they were made")
    add_output(parser, "one object a line, by commit")


def run(options: argparse.Namespace) -> int:
    """List the commits on sys.stdout."""
    log_dir = open_log_dir(options)
    entries = log_dir.history(topic=options.topic, limit=options.limit, newest_first=not options.oldest_first)
    found = _print_json(entries) if options.output == "json" else print_table(_HEADER, _lines(entries))
    if not found and options.topic is not None and options.topic not in log_dir.topics():
        raise UnknownTopicError(f"there is no topic {options.topic!r}, nor a commit to one that there was")
    return 0


def _print_json(entries: Iterable[HistoryEntry]) -> bool:
    found = False
    for entry in entries:
        found = True
        print_json(_tree(entry))
    return found


def _tree(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "offset": entry.offset,
        "timestamp": entry.timestamp_ms,
        "time": utc_time(entry.timestamp_ms),
        "operation": entry.operation,
        "transactionalId": entry.transactional_id,
        "version": entry.version,
        "incarnation": entry.incarnation,
        "writeId": entry.write_id,
        "topics": list(entry.topics),
        "records": entry.records,
        "bytes": entry.bytes,
        "partitions": [
            {
                "topic": each.topic,
                "topicId": each.topic_id,
                "partition": each.partition,
                "firstOffset": each.first_offset,
                "records": each.records,
                "bytes": each.bytes,
            }
            for each in entry.partitions
        ],
    }


def _lines(entries: Iterable[HistoryEntry]) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        commit = (
            str(entry.offset),
            utc_time(entry.timestamp_ms),
            entry.operation or NO_VALUE,
            entry.transactional_id or NO_VALUE,
            NO_VALUE if entry.version is None else str(entry.version),
        )
        for each in entry.partitions:
            yield *commit, each.topic, *map(str, (each.partition, each.first_offset, each.records, each.bytes))
        if not entry.partitions:
            for topic in entry.topics or (NO_VALUE,):
                yield *commit, topic, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE
