"""The commands for maintenance: log-cleaner, retention, merge-segments, tier, reindex, verify and delete-records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import ALL_FINE, SOME_FAILED, JobRun
from pyspark_kafkalog.maintenance.verify.remote import verify_remote_storage
from pyspark_kafkalog.root.brokers.read_only import ReadOnlyRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tiered.remote_storage import parse_remote_storage
from pyspark_kafkalog.tools.command import Command, UsageError, add_path, add_remote_storage, one_line
from pyspark_kafkalog.tools.jobs import job
from pyspark_kafkalog.tools.output import add_output, output_of
from pyspark_kafkalog.tools.running import open_log_dir, say_what_it_follows
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from pyspark_kafkalog.maintenance.jobs.sinks import JsonLines, TextReport

_LOG_CLEANER_HELP: Final = """\
`kafkalog log-cleaner`: clean compacted topics: keep the last record of each key, by Kafka's rules.

The filthiest partitions come first. log.cleaner.threads is the number of concurrent tasks (default: all cores); they
share log.cleaner.dedupe.buffer.size and log.cleaner.io.max.bytes.per.second. A partition whose cleaning fails is
marked uncleanable (see kafkalog metrics); the others continue, and the next run retries it. --output json prints one
line for each partition of a compacted topic when it is done; "skipped" states why it was not cleaned. It is safe to run
this command beside readers and writers, to run it twice at once (a partition that another run is working on is left to
that run), and to kill it at any time.

In an object store, what writes have put there is merged into segments when it fills one; all segments but the last are
cleaned. The end of a run deletes objects that are not needed any more.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM, SIGINT or SIGHUP, 1 when the Spark session is gone. --interval is
log.cleaner.backoff.ms by default.

examples:
  kafkalog log-cleaner --path /data/log
  kafkalog log-cleaner --path /data/log --topic users --dry-run | jq .dirtyPercent
  kafkalog log-cleaner --path /data/log --loop
  spark-submit jobs/log_cleaner.py --path /data/log
"""


_RETENTION_HELP: Final = """\
`kafkalog retention`: delete old segments of all topics, as a broker's log manager does.

retention.ms, retention.bytes, cleanup.policy and the log start offset apply, by Kafka's rules; the active segment is
deleted too if all of it is due. Offsets that a group has not committed again for offsets.retention.minutes expire, and
a group without offsets is deleted, when __consumer_offsets is among the topics. The ids of streaming queries and of
writes with txnAppId that were not used for writer.id.expiration.ms are forgotten, whichever topics are named.
--output json prints one line for each partition when it is done. It is safe to run this command beside readers and
writers, to run it twice at once (a partition that another run is working on is left to that run), and to kill it at any
time.

Of a tiered topic (see kafkalog tier), retention.ms and retention.bytes apply to what is in remote storage and on the
file system together, and only delete what has been copied; local.retention.ms and local.retention.bytes remove local
files of copied segments. With remote.log.copy.disable=true the whole log is retained as if it were not tiered.

In an object store whole segments and runs (the part of a write in one partition) are deleted by the same rules. There,
and in remote storage, the end of a run deletes objects that were dropped log.segment.delete.delay.ms ago (an hour
unless it is set), and those of writes and copies that were abandoned for staging.retention.ms. On a file system it
removes staged files of writes that were abandoned as long. It also takes a snapshot of the metadata if one is due, and
removes the commits in it that are older than metadata.max.retention.ms. The report calls them segments of
__cluster_metadata, partition 0; --dry-run says how many would go.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM, SIGINT or SIGHUP, 1 when the Spark session is gone. --interval is
log.retention.check.interval.ms by default.

examples:
  kafkalog retention --path /data/log
  kafkalog retention --path /data/log --topic orders --dry-run | jq .bytesDropped
  kafkalog retention --path /data/log --loop --interval 300
  spark-submit jobs/retention.py --path /data/log
"""


_MERGE_SEGMENTS_HELP: Final = """\
`kafkalog merge-segments`: combine small closed segments into full ones, without changing batches or offsets.

Adjacent segments below half of segment.bytes are merged if that is worth the copying. In an object store, what writes
have put there becomes segments, and objects that are not needed any more are deleted. --output json prints one line for
each partition when it is done. It is safe to run this command beside readers and writers, to run it twice at once
(a partition that another run is working on is left to that run), and to kill it at any time.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM, SIGINT or SIGHUP, 1 when the Spark session is gone. --interval is an hour
by default.

examples:
  kafkalog merge-segments --path /data/log
  kafkalog merge-segments --path /data/log --topic orders --dry-run
  spark-submit jobs/merge_segments.py --path /data/log
"""


_TIER_HELP: Final = """\
`kafkalog tier`: copy closed segments of tiered topics to remote storage, by the rules of Kafka's brokers.

The topics are those with remote.storage.enable=true and without remote.log.copy.disable=true. Their closed segments
below the last stable offset are copied in order to rsm.config.location, in rsm.config.layout, and checked before. Local
files stay: kafkalog retention removes copied ones by local.retention.ms and local.retention.bytes. --output json prints
one line for each partition when it is done; remoteEndOffset is the offset after the last one in remote storage. It is
safe to run this command beside readers and writers, to run it twice at once (a partition that another run is working on
is left to that run), and to kill it at any time.

The store's credentials come from the environment of the driver and of all executors.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM, SIGINT or SIGHUP, 1 when the Spark session is gone. --interval is
log.retention.check.interval.ms by default.

examples:
  kafkalog configs --path /data/log --broker-defaults --alter --add-config \\
      rsm.config.location=s3://bucket/tiered,remote.log.storage.system.enable=true
  kafkalog configs --path /data/log --topic orders --alter --add-config remote.storage.enable=true
  kafkalog tier --path /data/log
  kafkalog tier --path /data/log --topic orders --dry-run | jq .bytesCopied
  spark-submit jobs/tier.py --path /data/log
"""


_REINDEX_HELP: Final = """\
`kafkalog reindex`: rebuild missing or wrong indexes and producer snapshots from the .log files.

Index files that agree with the .log are kept, even if the current settings would produce different ones; --force
replaces those too. Damage in a .log is reported and sets exit status 1; the index files of that segment are kept.
--output json prints one line for each partition, with the number of files written (filesWritten). A broker's directory
is refused. It is safe to run this command beside readers and writers, to run it twice at once (a partition that another
run is working on is left to that run), and to kill it at any time.

In an object store the segments whose indexes are wrong are put again, with rebuilt ones.

Exit status: 0 all fine, also where another run has a partition; 1 a .log is damaged, or something could not be done; 2
wrong options. --interval is an hour by default.

examples:
  kafkalog reindex --path /data/log --dry-run | jq 'select(.filesWritten > 0)'
  kafkalog reindex --path /data/log --topic orders --partition 3
"""


_VERIFY_HELP: Final = """\
`kafkalog verify`: check every batch, index entry, snapshot and checkpoint of a log directory, native or a broker's.

It is read-only, and safe beside writers, readers and maintenance: files that they change meanwhile are checked again.
--output json prints one line for each finding ("action": "finding"), with its severity, file, position, offset, kind
("what"), the expected and the found value, and the remedy; and one line for each partition when it is done. Findings
about the directory itself are reported with __cluster_metadata, partition 0. Severities:

  error    bytes are not what they must be, or committed records cannot be read: exit status 1
  warning  no committed record is affected, or the next writer, or broker, repairs it automatically
  info     left by running or killed writes and maintenance; it is removed automatically

--repair first prints its plan ("action": "repair", "state": "planned"); with --dry-run it stops there. Then it carries
out the repairs ("done", or "failed" with the error) and verifies the repaired items again. It rebuilds what can be
derived: indexes, snapshots, checkpoints, hints; it finishes interrupted swaps and removes leftover files by the rules.
It never changes committed records: damaged ones remain errors, with a remedy. --repair refuses a broker's directory.

Of a log directory in an object store it checks the metadata log, all objects, and the batches in them; --repair is not
possible there.

--remote-storage verifies what brokers tiered instead: objects that no metadata names, names without objects, CRCs, gaps
and overlaps. With --path, the brokers' directories say which segments there are; without it, the objects alone do.

Exit status: 0 no errors, or none left; 1 errors, or something could not be done; 2 wrong options. --interval is an hour
by default.

examples:
  kafkalog verify --path /data/log | jq 'select(.action == "finding" and .severity != "info")'
  kafkalog verify --path /var/lib/kafka/data --topic orders --deep
  kafkalog verify --path /data/log --repair --dry-run
  kafkalog verify --remote-storage s3://bucket/tiered
  spark-submit jobs/verify.py --path /data/log --repair
"""


_DELETE_RECORDS_HELP: Final = """\
`kafkalog delete-records`: delete the records of partitions below given offsets, as kafka-delete-records does.

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


_HOUR_S: Final = 3600.0


def _clean(options: argparse.Namespace) -> int:
    job.log_to_stderr()  # before the kernels are loaded, as they may be compiled then
    from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob, cleaner_slots

    return job.run_job(
        options, CleanerJob(), interval_s=lambda config: config.log_cleaner_backoff_ms / 1000, slots=cleaner_slots
    )


def _retain(options: argparse.Namespace) -> int:
    job.log_to_stderr()
    from pyspark_kafkalog.maintenance.retention.delete import RETENTION_JOB

    return job.run_job(options, RETENTION_JOB, interval_s=lambda config: config.log_retention_check_interval_ms / 1000)


def _merge(options: argparse.Namespace) -> int:
    job.log_to_stderr()
    from pyspark_kafkalog.maintenance.merge import MERGE_JOB

    return job.run_job(options, MERGE_JOB, interval_s=_hourly)


def _tier(options: argparse.Namespace) -> int:
    job.log_to_stderr()
    from pyspark_kafkalog.maintenance.tier import TIER_JOB

    return job.run_job(options, TIER_JOB, interval_s=lambda config: config.log_retention_check_interval_ms / 1000)


def _add_reindex(parser: argparse.ArgumentParser) -> None:
    job.add_job_arguments(parser)
    parser.add_argument(
        "--partition",
        action="append",
        type=job.not_negative,
        metavar="N",
        help="only this partition of the topic; may be repeated (default: all partitions)",
    )
    parser.add_argument("--force", action="store_true", help="also replace correct index files that differ")


def _reindex(options: argparse.Namespace) -> int:
    if options.partition and not options.topic:
        raise UsageError("--partition needs --topic")
    job.log_to_stderr()
    from pyspark_kafkalog.maintenance.reindex import reindex_job

    chosen = reindex_job(tuple(options.partition or ()), force=options.force)
    return job.run_job(options, chosen, interval_s=_hourly)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    job.add_job_arguments(parser, needs_path=False)
    add_remote_storage(parser)
    parser.add_argument("--repair", action="store_true", help="repair what can be rebuilt, see above")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="check the records of compressed batches too, which takes as long as decompressing them; "
        "those of uncompressed batches, and all CRCs, are checked in any case",
    )


def _verify(options: argparse.Namespace) -> int:
    job.log_to_stderr()
    from pyspark_kafkalog.maintenance.verify.job import VerifyJob, open_or_findings

    if options.loop and options.interval is None:
        options.interval = _HOUR_S  # a broker's directory has no settings that define it
    output = job.job_output(options)
    if options.remote_storage is not None:
        return _verify_remote_storage(options, output)
    if options.path is None:
        raise UsageError("the following arguments are required: --path, or --remote-storage")
    root, findings = open_or_findings(options.path)
    if root is None:
        for finding in findings:
            output.emit(finding.tree())
        sys.stderr.write(f"kafkalog verify: the metadata log of {options.path} cannot be loaded, see the findings\n")
        return 1
    say_what_it_follows(root)
    verify_job = VerifyJob(output.emit, is_repairing=options.repair, are_records_checked=options.deep)
    return job.run_job(options, verify_job, interval_s=_hourly, output=output)


def _verify_remote_storage(options: argparse.Namespace, output: JsonLines | TextReport) -> int:
    """Verify remote storage instead of a directory, in this process."""
    if options.repair or options.loop or options.spark:
        raise UsageError("--repair, --loop and --spark cannot be used with --remote-storage")
    option = parse_remote_storage(
        options.remote_storage, options.remote_storage_layout, key_files=options.remote_storage_key_files
    )
    root = None if options.path is None else open_log_dir(options).root
    if root is not None and not isinstance(root, ReadOnlyRoot):
        raise UsageError(
            f"{options.path} is not a broker's directory: without --remote-storage its own is verified too"
        )
    topics = frozenset(options.topic) if options.topic else None
    path = Path(option.location)
    output.begin("verify", JobRun(path=path, topics=None, now_ms=options.now, dry_run=True), 0)
    is_fine = True
    for findings, report in verify_remote_storage(option, root, topics):
        for finding in findings:
            output.emit(finding.tree())
        output.take(report)
        is_fine &= report.is_fine
    output.end()
    return 0 if is_fine else SOME_FAILED


def _hourly(config: BrokerConfig) -> float:
    return _HOUR_S


_VERSION: Final = 1
_MAX_FILE_BYTES: Final = 64 << 20


class OffsetFileError(KafkalogError, ValueError):
    """The file of offsets is not in the format of Kafka's tool."""


def _add_delete_records(parser: argparse.ArgumentParser) -> None:
    """`--path`, the file of offsets, and the form of the report."""
    add_path(parser)
    parser.add_argument(
        "--offset-json-file", required=True, metavar="FILE", type=Path, help="the offset of each partition, in JSON"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what would be done")
    add_output(parser, "one object a line, by partition")


def _delete_records(options: argparse.Namespace) -> int:
    """Move the log start offsets; returns the exit status."""
    from pyspark_kafkalog.maintenance.jobs.sinks import report_tree
    from pyspark_kafkalog.maintenance.retention import delete_records

    offsets = read_offsets(options.offset_json_file)
    log_dir = open_log_dir(options)
    output = output_of(options)
    output.text("Executing records delete operation\n")
    reports = delete_records.delete_records(log_dir.root, offsets, dry_run=options.dry_run)
    marked = {"dryRun": True} if options.dry_run else {}
    output.show_all(
        reports,
        lambda each: {**report_tree(each), **marked},
        lambda each: _deleted_lines(each, dry_run=options.dry_run),
    )
    return ALL_FINE if all(each.is_fine for each in reports) else SOME_FAILED


def _deleted_lines(reports: Iterable[PartitionReport], *, dry_run: bool) -> Iterator[str]:
    yield "Records delete operation would result in:\n" if dry_run else "Records delete operation completed:\n"
    for report in reports:
        topic_partition = TopicPartition(report.topic, report.partition)
        if report.error is None:
            yield f"partition: {topic_partition}\tlow_watermark: {report.log_start_offset}\n"
        else:
            yield f"partition: {topic_partition}\terror: {report.error}\n"


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
    if "version" in tree and _integer(tree, "version", "it", INT32_MAX) != _VERSION:
        raise OffsetFileError(f"version {tree['version']} is not supported: expected {_VERSION}")
    if not isinstance(tree.get("partitions"), list):
        raise OffsetFileError("expected a list in the field partitions")
    offsets: dict[TopicPartition, int] = {}
    duplicates: set[TopicPartition] = set()
    for number, entry in enumerate(tree["partitions"], start=1):
        topic_partition, offset = _entry(entry, f"partition entry {number}")
        if topic_partition in offsets:
            duplicates.add(topic_partition)
        offsets[topic_partition] = offset
    if duplicates:
        raise OffsetFileError(f"partitions occur more than once: {', '.join(map(str, sorted(duplicates)))}")
    return offsets


def _entry(entry: Any, what: str) -> tuple[TopicPartition, int]:
    if not isinstance(entry, dict):
        raise OffsetFileError(f"{what} is not a JSON object")
    topic = entry.get("topic")
    if not isinstance(topic, str):
        raise OffsetFileError(f"{what} needs a string in the field topic")
    partition = _integer(entry, "partition", what, INT32_MAX)
    return TopicPartition(topic, partition), _integer(entry, "offset", what, INT64_MAX)


def _integer(tree: Mapping[str, Any], name: str, what: str, largest: int) -> int:
    value = tree.get(name)
    if type(value) is not int or not -largest - 1 <= value <= largest:
        raise OffsetFileError(f"{what} needs a whole number in the field {name}")
    return value


COMMANDS: Final = {
    name: Command(description, add_arguments, run, job.USAGE_EXIT_CODE)
    for name, description, add_arguments, run in (
        ("delete-records", _DELETE_RECORDS_HELP, _add_delete_records, _delete_records),
        ("log-cleaner", _LOG_CLEANER_HELP, job.add_job_arguments, _clean),
        ("merge-segments", _MERGE_SEGMENTS_HELP, job.add_job_arguments, _merge),
        ("reindex", _REINDEX_HELP, _add_reindex, _reindex),
        ("retention", _RETENTION_HELP, job.add_job_arguments, _retain),
        ("tier", _TIER_HELP, job.add_job_arguments, _tier),
        ("verify", _VERIFY_HELP, _add_verify, _verify),
    )
}
