"""The commands for maintenance, and their options; what they do is loaded when they run.

The options of jobs are the same for `kafkalog X`, which runs small jobs in its own process and larger ones in a Spark
session on this machine if Spark is installed, and for `spark-submit jobs/X.py`, which uses the session of spark-submit.
"""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark_kafkalog.tiered.remote_log_metadata import METADATA_PARTITIONS
from pyspark_kafkalog.tools.command import (
    FORMS,
    Command,
    add_local_only,
    add_path,
    add_read_to_log_end,
    add_remote_storage,
    later,
    local_path,
    path_or_url,
    positive,
    time_ms,
)
from pyspark_kafkalog.tools.output import add_output
from pyspark_kafkalog.tools.running import text_formatter
from pyspark_kafkalog.units import NS_PER_MS

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


_ADOPT_HELP: Final = """\
`kafkalog adopt`: convert a Kafka broker's log directory into a native log directory, in place.

Topics, their ids, configurations and partitions, offsets, leader epochs, producer state and open transactions are
kept; no record is copied or rewritten, and a broker can still mount the partitions. The broker must be stopped: a
directory in use by a broker is refused. If the broker was killed, its logs are recovered first, by the broker's rules.
Its metadata log is renamed to __cluster_metadata-0.kafka-stray. If this command is interrupted, run it again.

An open transaction no longer has a coordinator: read_committed stops at its first record. All open transactions are
listed, also with --dry-run, with the commands that end them. One in state PrepareCommit was committed: complete it.

Topics of which the directory has only some partitions are refused, because the others may be in another directory of
log.dirs or on another broker; --create-missing creates the others, empty. Topics' configurations are in the metadata
log, but defaults from server.properties (log.retention.hours, ...) are not in the directory: pass that file with
--server-properties. Topics whose earliest offsets a broker has moved to remote storage are refused, unless
--local-only: their logs would begin at the first local offset. Errors are printed in one line, with exit code 1.

examples:
  kafkalog adopt --path /var/lib/kafka/data --dry-run
  kafkalog adopt --path /var/lib/kafka/data --server-properties /etc/kafka/server.properties
"""


_EXPORT_HELP: Final = """\
`kafkalog export`: prepare partitions for a Kafka broker to mount, or copy a log directory.

Without --to, only Kafka's checkpoint files are written into the log directory itself: recovery points, high watermarks
and log start offsets as of the newest commit, as after a clean shutdown of a broker. An adopted directory needs these
before it is returned to its broker (docs/MIGRATING.md, "Back to Kafka"). The broker knows its topics as they were when
the directory was adopted. Later changes are listed, and refused without --set-aside DIR. With it, the topics and
partitions that the broker does not know are moved to DIR, a native log directory, and a script with the commands to
run on the broker is printed. With --to the partitions are copied as well:

  into a new or empty directory        a backup: a whole log directory, with everything that the original holds
  into a stopped broker's directory    the broker serves the records when it is started next

Writers and maintenance may continue: the copy is as of one commit. A backup has the original's cluster id and directory
id, and queries continue with it in the original's place; never write to both. An incomplete backup cannot be opened;
if the command is killed, run it again.

To mount topics in a broker's directory, create them on the broker first, with the same number of partitions and the
same configurations (kafkalog configs --describe), stop the broker, export, start it. The broker's topic ids are kept.
Partitions that have records there are refused unless --overwrite is given. Consumer groups are exported with the topic
__consumer_offsets, if the broker has it with the same number of partitions.

Closed segments are hard-linked if both directories are on one file system and --copy is not given; the active segment
is always copied.

A log directory on an object store can be copied to a new or empty directory. The copy's segments are built again, at
the same offsets. To mount them, export the copy to the broker's directory then.

examples:
  kafkalog export --path /var/lib/kafka/data --set-aside /var/lib/kafka/set-aside > back-to-kafka.sh
  kafkalog export --path /data/log --to /backup/log
  kafkalog export --path s3://bucket/log --to /data/log
  kafkalog export --path /data/log --to /var/lib/kafka/data --topic 'orders|returns'
"""


_REPORT_HELP: Final = """\
`kafkalog report`: write a report on a log directory as one HTML page, for any browser.

The report begins with findings that need an operator, and with what was read to find them. It shows topics with
configurations, partitions with watermarks and skew, segments over time and by size, writers over time, lag of consumer
groups, past and due work of cleaner and retention, and keys that stand out. The page is self-contained: it can be
mailed, and opens without a network. The log directory is not changed; it may be a broker's directory, also while the
broker runs.

Damage is looked for in the metadata log, checkpoints, and names and sizes of files. The bytes of batches are not
checked, unless --verify reads all of them, as `kafkalog verify` does, in this one process. Exit status: 0 the page is
written; 1 it cannot be, or shows only why the metadata log cannot be loaded; findings do not change it.

examples:
  kafkalog report /data/log -o report.html
  kafkalog report /data/log -o report.html --history /data/maintenance-runs
  kafkalog report /data/log -o report.html --verify
  kafkalog report --path /var/lib/kafka/data --sample-bytes 0 -o -
"""


#: The latest time that can be a file's, in ns in 64 bits: in the year 2262.
_TIME_MAX_MS: Final = (1 << 63) // NS_PER_MS


_SAMPLE_BYTES: Final = 256 << 20


def _add_job(parser: argparse.ArgumentParser, *, needs_path: bool = True) -> None:
    """The common options of maintenance jobs."""
    path_help = "the log directory, in an object store or on a file system that the driver and all executors see"
    add_path(parser, path_help, required=needs_path)
    parser.add_argument(
        "--topic",
        action="append",
        metavar="TOPIC",
        help="only this topic, or those that match a regular expression now; may be repeated (default: all topics)",
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what would be done")
    parser.add_argument(
        "--now", type=_now_ms, metavar="TIME", help=f"the time to use as now: {FORMS} (default: the clock's)"
    )
    parser.add_argument("--tasks", type=positive, metavar="N", help="tasks at the same time (default: all cores)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--local", action="store_true", help="run in this process, whatever the amount of work")
    place.add_argument(
        "--spark", action="store_true", help="run on Spark, whatever the amount of work (default: by its size)"
    )
    parser.add_argument("--loop", action="store_true", help="run again and again, until SIGTERM, SIGINT or SIGHUP")
    parser.add_argument(
        "--interval", type=_seconds, metavar="SECONDS", help="with --loop: the pause between runs (default: see above)"
    )
    parser.add_argument(
        "--history", metavar="TABLE", help="append a row for each partition to this Delta table, a path or a name"
    )
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        help="text: a table and totals; json: one object a line for each partition, when it is done (default: text "
        "on a terminal, else json)",
    )


def _not_negative(text: str) -> int:
    """The argparse type of numbers of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return int(text)


def _now_ms(text: str) -> int:
    now_ms = time_ms(text)
    if now_ms > _TIME_MAX_MS:
        raise argparse.ArgumentTypeError(f"must be {_TIME_MAX_MS} at most, ms and not a smaller unit, not {text}")
    return now_ms


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return seconds


def _add_reindex(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    parser.add_argument(
        "--partition",
        action="append",
        type=_not_negative,
        metavar="N",
        help="only this partition of the topic; may be repeated (default: all partitions)",
    )
    parser.add_argument("--force", action="store_true", help="also replace correct index files that differ")


def _add_verify(parser: argparse.ArgumentParser) -> None:
    _add_job(parser, needs_path=False)
    add_remote_storage(parser)
    parser.add_argument("--repair", action="store_true", help="repair what can be rebuilt, see above")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="check the records of compressed batches too, which takes as long as decompressing them; "
        "those of uncompressed batches, and all CRCs, are checked in any case",
    )


def _add_delete_records(parser: argparse.ArgumentParser) -> None:
    """`--path`, the file of offsets, and the form of the report."""
    add_path(parser)
    parser.add_argument(
        "--offset-json-file", required=True, metavar="FILE", type=Path, help="the offset of each partition, in JSON"
    )
    parser.add_argument("--dry-run", action="store_true", help="change nothing, report what would be done")
    add_output(parser, "one object a line, by partition")


def _add_adopt(parser: argparse.ArgumentParser) -> None:
    """`--path`, options for what to adopt, `--dry-run`."""
    add_path(parser, "the broker's log directory")
    parser.add_argument(
        "--server-properties",
        metavar="FILE",
        type=Path,
        help="the broker's configuration file; its settings for topics become those of the directory",
    )
    parser.add_argument(
        "--create-missing", action="store_true", help="create the partitions that the directory does not hold, empty"
    )
    add_local_only(parser, "give up the offsets that a broker has moved to remote storage")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, print what would be done")
    add_output(parser, "one object")


def _add_export(parser: argparse.ArgumentParser) -> None:
    """`--path`, the destination, and the topics."""
    add_path(parser)
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=local_path,
        help="copy the partitions to this directory (default: write checkpoints only)",
    )
    parser.add_argument("--topic", metavar="TOPIC", help="only a topic, or a regular expression of topics (--to)")
    parser.add_argument("--copy", action="store_true", help="copy closed segments instead of hard-linking them (--to)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the records of the broker's partitions (--to)"
    )
    parser.add_argument(
        "--new-broker", action="store_true", help="make DIR a directory that a new Kafka broker starts on (--to)"
    )
    parser.add_argument(
        "--tiered",
        action="store_true",
        help="leave segments in remote storage, or merged ones in the object store, instead of copying them (--to)",
    )
    parser.add_argument(
        "--metadata-partitions",
        metavar="N",
        type=int,
        default=METADATA_PARTITIONS,
        help="partitions of __remote_log_metadata, as the broker is configured (default: %(default)s; --new-broker)",
    )
    parser.add_argument(
        "--set-aside",
        metavar="DIR",
        type=local_path,
        help="move there what the broker does not know, and print the broker's commands",
    )
    parser.add_argument(
        "--server-properties",
        metavar="FILE",
        type=Path,
        help="the broker's configuration file, if adopt got it: its settings are no changes (without --to)",
    )
    add_remote_storage(parser)
    add_output(parser, "one object a line, by partition")


def _add_report(parser: argparse.ArgumentParser) -> None:
    """The root, as a positional argument or `--path`; the output file; further sources of the report."""
    parser.add_argument("root", nargs="?", metavar="ROOT", type=path_or_url, help="the log directory")
    add_path(parser, "the log directory, as with other commands", required=False)
    add_read_to_log_end(parser)
    parser.add_argument(
        "-o",
        "--file",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="the file to write, - for stdout (default: report.html)",
    )
    parser.add_argument("--output", dest="file", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--history",
        metavar="DELTA_PATH",
        type=Path,
        help="the Delta table of the maintenance jobs' runs (their --history)",
    )
    parser.add_argument(
        "--sample-bytes",
        metavar="BYTES",
        type=int,
        default=_SAMPLE_BYTES,
        help=f"how much of the log's end to read for the largest keys, 0: nothing (default: {_SAMPLE_BYTES})",
    )

    parser.add_argument(
        "--verify",
        action="store_true",
        help="read and check the bytes of all batches too, as kafkalog verify does, and show its findings",
    )


def _run(function: str) -> Callable[[argparse.Namespace], int]:
    """A function of jobs.py. The log is set up before its modules are loaded, as they may be compiled then."""
    run = later(f"maintenance.jobs:{function}")

    def run_and_log(options: argparse.Namespace) -> int:
        _log_to_stderr()
        return run(options)

    return run_and_log


def _log_to_stderr() -> None:
    """Print the package's log messages to standard error, unless logging is already configured."""
    package = logging.getLogger("pyspark_kafkalog")
    if not package.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(text_formatter())
        logging.basicConfig(handlers=[handler])
        package.setLevel(logging.INFO)


COMMANDS: Final = {
    "adopt": Command(_ADOPT_HELP, _add_adopt, later("maintenance.migration:run_adopt")),
    "export": Command(_EXPORT_HELP, _add_export, later("maintenance.migration:run_export")),
    "report": Command(_REPORT_HELP, _add_report, later("maintenance.report:run")),
    "delete-records": Command(_DELETE_RECORDS_HELP, _add_delete_records, later("maintenance.jobs:delete")),
    "log-cleaner": Command(_LOG_CLEANER_HELP, _add_job, _run("clean")),
    "merge-segments": Command(_MERGE_SEGMENTS_HELP, _add_job, _run("merge")),
    "reindex": Command(_REINDEX_HELP, _add_reindex, _run("reindex")),
    "retention": Command(_RETENTION_HELP, _add_job, _run("retain")),
    "tier": Command(_TIER_HELP, _add_job, _run("tier")),
    "verify": Command(_VERIFY_HELP, _add_verify, _run("verify")),
}
