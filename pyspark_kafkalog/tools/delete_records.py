"""`kafkalog delete-records`: delete the records of partitions below given offsets, as kafka-delete-records does.

The file has Kafka's format: {"partitions": [{"topic": "orders", "partition": 0, "offset": 100}], "version": 1}; offset
-1 means the high watermark. One commit moves the log start offsets of all partitions; the next `kafkalog retention`
deletes whole segments below them. Only that commit is needed, so no Spark session is started, even with spark-submit.

Exit status: 0 all done; 1 a partition was refused, or nothing could be done; 2 wrong options. With --output json there
is one line per partition, as for the other maintenance jobs.

examples:
  kafkalog delete-records --path /data/log --offset-json-file offsets.json
  kafkalog delete-records --path /data/log --offset-json-file offsets.json --dry-run --output json
  spark-submit jobs/delete_records.py --path /data/log --offset-json-file offsets.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools import maintenance
from pyspark_kafkalog.tools.command import add_output, add_path, one_line, open_log_dir

if TYPE_CHECKING:
    from pyspark_kafkalog.maintenance.jobs.report import PartitionReport

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE
_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 20
_INT32_MAX: Final = 0x7FFFFFFF
_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class OffsetFileError(KafkalogError, ValueError):
    """The file of offsets is not in the format of Kafka's tool."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, the file of offsets, and the form of the report."""
    add_path(parser)
    parser.add_argument(
        "--offset-json-file", required=True, metavar="FILE", type=Path, help="the offset of each partition, in JSON"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what would be done")
    add_output(parser, "one object a line, by partition")


def run(options: argparse.Namespace) -> int:
    """Move the log start offsets; returns the exit status."""
    from pyspark_kafkalog.maintenance.jobs import sinks as report_sinks
    from pyspark_kafkalog.maintenance.jobs.runner import ALL_FINE, SOME_FAILED, Round
    from pyspark_kafkalog.maintenance.retention import delete_records

    offsets = read_offsets(options.offset_json_file)
    log_dir = open_log_dir(options)
    if options.output == "text":
        sys.stdout.write("Executing records delete operation\n")
    reports = delete_records.delete_records(log_dir, offsets, dry_run=options.dry_run)
    if options.output == "text":
        _print(reports, options.dry_run)
    else:
        lines = report_sinks.JsonLines()
        lines.begin(delete_records.ACTION, Round(path=options.path, dry_run=options.dry_run), len(reports))
        for report in reports:
            lines.take(report)
    return ALL_FINE if all(each.is_fine for each in reports) else SOME_FAILED


def _print(reports: Sequence[PartitionReport], dry_run: bool) -> None:
    sys.stdout.write("Records delete operation would give:\n" if dry_run else "Records delete operation completed:\n")
    for report in reports:
        where = TopicPartition(report.topic, report.partition)
        if report.error is None:
            sys.stdout.write(f"partition: {where}\tlow_watermark: {report.log_start_offset}\n")
        else:
            sys.stdout.write(f"partition: {where}\terror: {report.error}\n")


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """The file's offset by partition. Raises OSError, and OffsetFileError for what DeleteRecordsCommand refuses."""
    with path.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise OffsetFileError(f"{path} has more than {_MAX_FILE_BYTES} bytes")
    try:
        return parse_offsets(data)
    except OffsetFileError as error:
        raise OffsetFileError(f"{path}: {one_line(error)}") from None


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    """As `read_offsets`, from the file's bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        raise OffsetFileError("it is not valid JSON") from None
    if not isinstance(tree, dict):
        raise OffsetFileError("expected a JSON object")
    if "version" in tree and _integer(tree, "version", "it", _INT32_MAX) != _VERSION:
        raise OffsetFileError(f"version {tree['version']} is not supported: expected {_VERSION}")
    if not isinstance(tree.get("partitions"), list):
        raise OffsetFileError("expected a list in the field partitions")
    offsets: dict[TopicPartition, int] = {}
    duplicates: set[TopicPartition] = set()
    for number, entry in enumerate(tree["partitions"], start=1):
        where, offset = _entry(entry, f"partition entry {number}")
        if where in offsets:
            duplicates.add(where)
        offsets[where] = offset
    if duplicates:
        raise OffsetFileError(f"partitions are there more than once: {', '.join(map(str, sorted(duplicates)))}")
    return offsets


def _entry(entry: Any, what: str) -> tuple[TopicPartition, int]:
    if not isinstance(entry, dict):
        raise OffsetFileError(f"{what} is not a JSON object")
    topic = entry.get("topic")
    if not isinstance(topic, str):
        raise OffsetFileError(f"{what} needs a string in the field topic")
    partition = _integer(entry, "partition", what, _INT32_MAX)
    return TopicPartition(topic, partition), _integer(entry, "offset", what, _INT64_MAX)


def _integer(tree: Mapping[str, Any], name: str, what: str, largest: int) -> int:
    value = tree.get(name)
    if type(value) is not int or not -largest - 1 <= value <= largest:
        raise OffsetFileError(f"{what} needs a whole number in the field {name}")
    return value
